"""Training that selects several tokens at once, compared with the prediction W_fin + C W_dir."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.report.plots import COLOURS, finish_panel, make_panels, plot_band
from clearhead.report.tables import Field, Table
from clearhead.report.wording import short
from clearhead.theories.max_margin import attention_svm
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import AttentionTask
from clearhead_lab.experiments.svm.descent.dynamics import train
from clearhead_lab.experiments.svm.descent.solutions import svm_experiment
from clearhead_lab.experiments.svm.descent.tasks import draw_relu_tasks, draw_start
from clearhead_lab.theorems.max_margin.convergence import correlation
from clearhead_lab.theorems.max_margin.multi_token import likely_tokens, multi_token_svm

N, T, STEPS = 3, 4, 2001
WIDTHS = (4, 6, 8, 10)
EXCLUDED, SELECTED = 1e-6, 1e-3
"""A token with at most the first probability is excluded, with more than the second it is selected."""
BOTH, DIRECTION, SINGLE = "W_fin + C W_dir", "W_dir alone", "one-token SVM"
REFERENCE = {
    BOTH: (7.6e-3, 2.7e-3, 2.4e-3, 1.9e-3),
    DIRECTION: (1.3e-2, 3.7e-3, 4.7e-3, 2.2e-3),
    SINGLE: (0.11, 0.09, 0.12, 0.15),
}
"""Medians of 1 - cosine of an independent implementation, by `WIDTHS`."""
REFERENCE_COUNTS = ((55, 263), (40, 269), (12, 271), (3, 256))

Result = Mapping[str, Any]


def measure(*, d: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train W on every task with a negative label; compare it with every prediction."""
    task = draw_relu_tasks(seeds, n=N, t=T, d=d)
    run = train(task, draw_start(seeds, (d, d)), steps=STEPS)
    attention, W = run.attention[-1], run.W[-1]
    negative = (task.labels < 0).any(dim=-1)
    undecided = ((attention > EXCLUDED) & (attention <= SELECTED)).flatten(1).any(dim=1)
    all_selected = (attention > EXCLUDED).flatten(1).all(dim=1)
    return {
        "runs": [
            {
                "seed": seeds[i],
                "accepted": not bool(undecided[i] | all_selected[i]),
                **_distances(task, i, attention[i], W[i]),
            }
            for i in torch.nonzero(negative).flatten().tolist()
        ],
        "undecided": int((negative & undecided).sum()),
        "nothing excluded": int((negative & all_selected & ~undecided).sum()),
    }


def _distances(task: AttentionTask, run: int, attention: Tensor, W: Tensor) -> dict[str, float | None]:
    """Return 1 - cosine of W to every prediction; None where a prediction does not exist."""
    x, z = task.tokens[run], task.queries[run]
    solved = multi_token_svm(x, z, likely_tokens(attention, threshold=SELECTED), probabilities=attention)
    direction = solved.direction.W
    predictions = {
        BOTH: None if solved.finite is None or direction is None else solved.prediction(W),
        DIRECTION: direction,
        SINGLE: attention_svm(x, z, attention.argmax(dim=-1)).W,
    }
    return {
        name: None if predicted is None or not predicted.any() else 1 - float(correlation(W, predicted))
        for name, predicted in predictions.items()
    }


def _cell(d: int) -> str:
    return f"d = {d}"


def _seeds(request: Request) -> list[int]:
    return [seed + 1 for seed in request.seed_list(300)]


def report(results: Mapping[str, Result], request: Request) -> Report:
    """Tabulate the median distances from the predictions, and why runs are not accepted."""
    seeds, each = _seeds(request), [results[_cell(d)] for d in WIDTHS]
    medians = [_number(_median(result, BOTH)) for result in each]
    accepted = [str(_accepted(result)) for result in each]
    return Report(
        headline=f"median 1 - cosine to W_fin + C W_dir {'/'.join(medians)} for d = {'/'.join(map(str, WIDTHS))}; "
        f"accepted {'/'.join(accepted)}",
        setting=(
            f"Tasks drawn from seeds {seeds[0]} to {seeds[-1]}, those with a negative label: n = {N}, T = {T}, head "
            f"1.relu(V^T o), normalised descent, {STEPS:,} steps. A run is accepted, as published, if at the end no "
            f"probability is between {EXCLUDED:g} and {SELECTED:g} and some are below. Medians of 1 - cosine of W to "
            f"the predictions, over the accepted runs, and over all runs with a prediction (selected: above "
            f"{SELECTED:g})."
        ),
        sections=[
            ("1 - cosine to the predictions", _table(each)),
            ("Why runs are not accepted", _rejections(each)),
        ],
        remarks=(
            "Medians of 1 - cosine of W over the accepted runs: to W_fin + C W_dir, to W_dir, and to the SVM of the "
            "most probable tokens; all: the first over all runs with a prediction; ref.: an independent "
            "implementation, in the same order.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "by_width": {str(d): result for d, result in zip(WIDTHS, each, strict=True)}},
    )


def _accepted(result: Result) -> int:
    return sum(run["accepted"] for run in result["runs"])


def _values(result: Result, name: str, *, accepted: bool = True) -> list[float]:
    return [run[name] for run in result["runs"] if run[name] is not None and (run["accepted"] or not accepted)]


def _median(result: Result, name: str, *, accepted: bool = True) -> float | None:
    values = _values(result, name, accepted=accepted)
    return float(np.median(values)) if values else None


def _number(value: float | None) -> str:
    return "-" if value is None else short(value) if value >= 0.01 else f"{value:.1e}".replace("e-0", "e-")


def _table(each: Sequence[Result]) -> Table:
    reference = [" / ".join(_number(values[i]) for values in REFERENCE.values()) for i in range(len(WIDTHS))]
    medians = {name: [_number(_median(result, name)) for result in each] for name in REFERENCE}
    every = [_number(_median(result, BOTH, accepted=False)) for result in each]
    counts = [f"{_accepted(result)} of {len(result['runs'])}" for result in each]
    return [
        Field(title="d", cells=[str(d) for d in WIDTHS]),
        Field(title="accepted", cells=counts, rank=1),
        Field(title=BOTH, short="both", cells=medians[BOTH]),
        Field(title=DIRECTION, short="W_dir", cells=medians[DIRECTION]),
        Field(title=SINGLE, short="one token", cells=medians[SINGLE]),
        Field(title=f"{BOTH}, all runs", short="all", cells=every, rank=2),
        Field(title="reference", short="ref.", cells=reference, rank=3),
        Field(
            title="reference, accepted", short="accepted", rank=4,
            cells=[f"{accepted} of {tasks}" for accepted, tasks in REFERENCE_COUNTS],
        ),
    ]  # fmt: skip


def _rejections(each: Sequence[Result]) -> Table:
    return [
        Field(title="d", cells=[str(d) for d in WIDTHS]),
        Field(title="tasks", cells=[str(len(result["runs"])) for result in each]),
        Field(title="a probability in between", cells=[str(result["undecided"]) for result in each]),
        Field(title="no token excluded", cells=[str(result["nothing excluded"]) for result in each]),
    ]


def draw(results: Mapping[str, Result]) -> Figure:
    """Plot the distances from the predictions, and the percentage of accepted runs, by the width of tokens."""
    each = [results[_cell(d)] for d in WIDTHS]
    figure, (left, right) = make_panels(2, title="Training that selects several tokens, compared with predictions")
    for colour, (name, reference) in enumerate(REFERENCE.items()):
        known = [
            (d, np.quantile(v, (0.25, 0.5, 0.75))) for d, r in zip(WIDTHS, each, strict=True) if (v := _values(r, name))
        ]
        low, middle, high = np.array([quantiles for _, quantiles in known]).reshape(-1, 3).T
        plot_band(left, [d for d, _ in known], middle, low, high, label=name, colour=colour)
        left.plot(WIDTHS, reference, "o", color=COLOURS[5], markersize=4, label="reference")
    finish_panel(left, title="1 - cosine of W, median and quartiles", x="width d of tokens", y="1 - cosine", y_log=True)
    shares = [100 * _accepted(result) / max(len(result["runs"]), 1) for result in each]
    plot_band(right, WIDTHS, shares, (), (), label="accepted", colour=3)
    counts = [100 * accepted / tasks for accepted, tasks in REFERENCE_COUNTS]
    right.plot(WIDTHS, counts, "o", color=COLOURS[5], markersize=4, label="reference")
    finish_panel(right, title="accepted runs", x="width d of tokens", y="per cent of tasks")
    return figure


MULTI_TOKEN = svm_experiment(
    "multi-token",
    measure,
    lambda request: {_cell(d): {"d": d, "seeds": _seeds(request)} for d in WIDTHS},
    report,
    title="Training that selects several tokens at once",
    reproduces="with a nonlinear head training selects several tokens, and W follows W_fin + C W_dir",
    cost="20 s",
)
