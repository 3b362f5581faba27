"""Training that selects several tokens at once: whether it reaches W_fin + C W_dir."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, seeds_of, write_page
from clearhead.experiments.svm.descent.attention_task import AttentionTask
from clearhead.experiments.svm.descent.dynamics import train
from clearhead.experiments.svm.descent.tasks import draw_relu_tasks, draw_start
from clearhead.experiments.svm.solutions import ROOMS
from clearhead.experiments.tables import Field, as_columns, as_markdown
from clearhead.report.line_chart import Line, Panel, picture
from clearhead.report.wording import short
from clearhead.theories.max_margin import attention_svm
from clearhead.theories.max_margin.optimality import correlation
from clearhead.theories.max_margin.svm.multi_token import likely_tokens, multi_token_svm

__all__ = ["MULTI_TOKEN"]

NAME = "svm/multi-token"
N, T, STEPS = 3, 4, 2001
WIDTHS = (4, 6, 8, 10)
LEFT_OUT, SELECTED = 1e-6, 1e-3
"""Probabilities at most the first are of tokens left out, above the second of selected ones."""
BOTH, DIRECTION, SINGLE = "W_fin + C W_dir", "W_dir alone", "one-token SVM"
PROTOTYPE = {
    BOTH: (7.6e-3, 2.7e-3, 2.4e-3, 1.9e-3),
    DIRECTION: (1.3e-2, 3.7e-3, 4.7e-3, 2.2e-3),
    SINGLE: (0.11, 0.09, 0.12, 0.15),
}
"""Medians of 1 - cosine of the prototype's run, by `WIDTHS`."""
PROTOTYPE_COUNTS = ((55, 263), (40, 269), (12, 271), (3, 256))


def measure(*, d: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train W on every task with a negative label, and compare it with what is predicted, where it can be told."""
    task = draw_relu_tasks(seeds, n=N, t=T, d=d)
    found = train(task, draw_start(seeds, (d, d)), steps=STEPS)
    attention, W = found.attention[-1], found.W[-1]
    negative = (task.labels < 0).any(dim=-1)
    between = ((attention > LEFT_OUT) & (attention <= SELECTED)).flatten(1).any(dim=1)
    whole = (attention > LEFT_OUT).flatten(1).all(dim=1)
    runs = [
        {
            "seed": seeds[run],
            "accepted": not bool(between[run] | whole[run]),
            **_apart(task, run, attention[run], W[run]),
        }
        for run in torch.nonzero(negative).flatten().tolist()
    ]
    return {
        "runs": runs,
        "undecided": int((negative & between).sum()),
        "nothing left out": int((negative & whole & ~between).sum()),
    }


def _apart(task: AttentionTask, run: int, attention: Tensor, W: Tensor) -> dict[str, float | None]:
    """1 - cosine to every prediction; None where there is none."""
    x, z = task.tokens[run], task.queries[run]
    solved = multi_token_svm(x, z, likely_tokens(attention, threshold=SELECTED), probabilities=attention)
    single = attention_svm(x, z, attention.argmax(dim=-1)).W
    direction = solved.direction.W
    both = None if solved.finite is None or direction is None else solved.prediction(W)
    predicted = {BOTH: both, DIRECTION: direction, SINGLE: single}
    return {
        name: None if other is None or not other.any() else 1 - float(correlation(W, other))
        for name, other in predicted.items()
    }


def _run(request: Request, folder: Path) -> Outcome:
    seeds = [seed + 1 for seed in seeds_of(request, 300)]
    found: dict[int, Mapping[str, Any]] = {}
    for place, d in enumerate(WIDTHS):
        request.tell(f"d = {d}", place, len(WIDTHS))
        path = folder / "measured" / f"{d}.json"
        found[d] = kept(path, measure, {"d": d, "seeds": seeds}, rooms=ROOMS)
    table = _table(found)
    command = command_of(NAME, request)
    page = write_page(
        folder,
        title="Training that selects several tokens at once",
        command=command,
        setting=(
            f"Tasks drawn from seeds {seeds[0]} to {seeds[-1]}, those with a negative label: n = {N}, T = {T}, head "
            f"1.relu(V^T o), normalised descent, {STEPS:,} steps. A run is accepted, as published, if no probability "
            f"is between {LEFT_OUT:g} and {SELECTED:g} in the end and some are below. Medians of 1 - cosine of W to "
            "what is predicted, over the accepted runs, and over all that have a prediction (selected: above "
            f"{SELECTED:g})."
        ),
        tables=[
            ("1 - cosine to what is predicted", as_markdown(table)),
            ("Why runs are not accepted", as_markdown(_rejected(found))),
        ],
    )
    write_text(folder / PICTURE, _picture(found))
    medians = [_median(found[d], BOTH) for d in WIDTHS]
    accepted = [sum(run["accepted"] for run in found[d]["runs"]) for d in WIDTHS]
    return Outcome(
        headline=f"median 1 - cosine to W_fin + C W_dir {'/'.join(_short(m) for m in medians)} for d = "
        f"{'/'.join(map(str, WIDTHS))}; accepted {'/'.join(map(str, accepted))}",
        tables=as_columns(table),
        remarks=(
            "Medians of 1 - cosine of W over the accepted runs: to W_fin + C W_dir, to W_dir, and to the SVM of the "
            "most probable tokens; all: the first over all runs that have a prediction; prot.: those of the "
            "prototype's run, in the same order.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "by_width": {str(d): one for d, one in found.items()}},
    )


def _values(one: Mapping[str, Any], name: str, *, accepted: bool = True) -> list[float]:
    return [run[name] for run in one["runs"] if run[name] is not None and (run["accepted"] or not accepted)]


def _median(one: Mapping[str, Any], name: str, *, accepted: bool = True) -> float | None:
    values = _values(one, name, accepted=accepted)
    return float(np.median(values)) if values else None


def _short(value: float | None) -> str:
    return "-" if value is None else short(value) if value >= 0.01 else f"{value:.1e}".replace("e-0", "e-")


def _table(found: Mapping[int, Mapping[str, Any]]) -> list[Field]:
    counts = [(sum(run["accepted"] for run in one["runs"]), len(one["runs"])) for one in found.values()]
    told = [" / ".join(_short(PROTOTYPE[name][place]) for name in PROTOTYPE) for place in range(len(WIDTHS))]
    return [
        Field(title="d", cells=[str(d) for d in found]),
        Field(title="accepted", cells=[f"{some} of {all_}" for some, all_ in counts], rank=1),
        Field(title=BOTH, short="both", cells=[_short(_median(one, BOTH)) for one in found.values()]),
        Field(title=DIRECTION, short="W_dir", cells=[_short(_median(one, DIRECTION)) for one in found.values()]),
        Field(title=SINGLE, short="one token", cells=[_short(_median(one, SINGLE)) for one in found.values()]),
        Field(
            title=f"{BOTH}, all runs",
            short="all",
            cells=[_short(_median(one, BOTH, accepted=False)) for one in found.values()],
            rank=2,
        ),
        Field(title="prototype", short="prot.", cells=told, rank=3),
        Field(
            title="prototype, accepted",
            short="accepted",
            cells=[f"{some} of {all_}" for some, all_ in PROTOTYPE_COUNTS],
            rank=4,
        ),
    ]


def _rejected(found: Mapping[int, Mapping[str, Any]]) -> list[Field]:
    each = list(found.values())
    return [
        Field(title="d", cells=[str(d) for d in found]),
        Field(title="tasks", cells=[str(len(one["runs"])) for one in each]),
        Field(title="some probability in between", cells=[str(one["undecided"]) for one in each]),
        Field(title="no token left out", cells=[str(one["nothing left out"]) for one in each]),
    ]


def _picture(found: Mapping[int, Mapping[str, Any]]) -> str:
    lines = []
    for colour, name in enumerate(PROTOTYPE):
        known = [(d, np.quantile(v, (0.25, 0.5, 0.75))) for d, one in found.items() if (v := _values(one, name))]
        lines.append(
            Line(
                name=name,
                x=[d for d, _ in known],
                y=[float(q[1]) for _, q in known],
                low=[float(q[0]) for _, q in known],
                high=[float(q[2]) for _, q in known],
                colour=colour,
            )
        )
    dots = [Line(name="prototype", x=WIDTHS, y=values, colour=5, points=True) for values in PROTOTYPE.values()]
    shares = [100 * sum(run["accepted"] for run in one["runs"]) / max(len(one["runs"]), 1) for one in found.values()]
    counted = [100 * some / all_ for some, all_ in PROTOTYPE_COUNTS]
    return picture(
        [
            Panel(
                title="1 - cosine of W, median and quartiles",
                x_label="width d of tokens",
                y_label="1 - cosine",
                lines=[*lines, *dots],
                y_log=True,
            ),
            Panel(
                title="runs that are accepted",
                x_label="width d of tokens",
                y_label="per cent of tasks",
                lines=[
                    Line(name="accepted", x=list(found), y=shares, colour=3),
                    Line(name="prototype", x=WIDTHS, y=counted, colour=5, points=True),
                ],
            ),
        ],
        title="Training that selects several tokens, beside what is predicted",
    )


MULTI_TOKEN = Experiment(
    name=NAME,
    reproduces="a head that is not linear selects several tokens, and W follows W_fin + C W_dir",
    cost="20 s",
    run=_run,
    options=frozenset({"seeds"}),
)
