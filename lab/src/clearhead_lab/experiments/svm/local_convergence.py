"""Where normalised descent leads: W to the SVM of least Frobenius norm, K and Q to that of least nuclear norm."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clearhead.report.tables import Field, Table, decimals, mean_of, over_runs, percentage
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.estimates import mean_field
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.rules import Factored
from clearhead_lab.experiments.svm.descent.solutions import (
    PREDICTED,
    Method,
    cosines,
    draw_cosines,
    selection,
    solve_all,
    svm_experiment,
    train_by,
)

N, T, D, STEPS = 6, 8, 10, 2000
SHOWN = (100, 500, 1000, 2000)
RECORDED = sorted({*SHOWN, *(int(step) for step in np.geomspace(10, STEPS, 40))})
METHODS = {"W": Method(), "K, Q": Method(parameters=Factored())}
REFERENCE = {
    ("W", Norm.FROBENIUS): (0.745, 0.972, 0.989, 0.996),
    ("W", Norm.NUCLEAR): (None, None, None, 0.861),
    ("K, Q", Norm.NUCLEAR): (0.852, 0.980, 0.991, 0.996),
    ("K, Q", Norm.FROBENIUS): (None, None, None, 0.851),
}
"""Cosines at the steps `SHOWN` of an independent implementation, 100 seeds."""
REFERENCE_GLOBAL = {"W": 74, "K, Q": 78}
LEAST, MOST = 0.99, 0.90
"""The mean cosine to the predicted SVM must be at least the first, that to the other SVM at most the second."""

Results = Mapping[str, Mapping[str, Any]]


def measure(*, trained: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train one parameterisation from every seed; compare it with both SVMs of the tokens selected at the end."""
    task, run = train_by(METHODS[trained], seeds, n=N, t=T, d=D, steps=STEPS, record=RECORDED)
    solutions = {norm: solve_all(task.tokens, task.queries, run.selected[-1], norm) for norm in PREDICTED.values()}
    return {
        "steps": run.steps,
        "cosines": {norm: [cosines(W, solved) for W in run.W] for norm, solved in solutions.items()},
        "gap": {norm: max(solved.gap for solved in each) for norm, each in solutions.items()},
        **selection(task, run, solutions[PREDICTED[trained]]),
    }


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines by step, and the runs that saturate and select optimal tokens."""
    seeds = request.seed_list(20)
    last = {(trained, norm): over_runs(results[trained]["cosines"][norm][-1]) for trained, norm in REFERENCE}
    met = {
        f"{trained} to {norm}": mean.mean >= LEAST if PREDICTED[trained] is norm else mean.mean <= MOST
        for (trained, norm), mean in last.items()
        if mean is not None
    }
    predicted, other = (
        [mean_of(mean) for (trained, norm), mean in last.items() if (PREDICTED[trained] is norm) is wanted]
        for wanted in (True, False)
    )
    return Report(
        headline=f"cosine to the predicted SVM {' and '.join(predicted)}, to the other {' and '.join(other)}; "
        f"{sum(met.values())} of 4 thresholds met",
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}, "
            "cross-attention, tokens and queries of length one, a fixed linear head, logistic loss. Normalised descent "
            "with rate 0.1, initialised as a linear layer. Cosines to the SVM of the tokens selected at the end: means "
            "with 95 % Student intervals."
        ),
        sections=[
            ("Cosine to the SVM, by the number of steps", _cosine_table(results)),
            ("Runs that saturate and select optimal tokens, in per cent with Wilson intervals", _token_table(results)),
        ],
        remarks=(
            "Mean cosine by the number of steps, ± half of the 95 % Student interval over seeds; ref.: an independent "
            "implementation, 100 seeds, at the end.",
            *(
                f"{trained}: saturated {percentage(result['saturated'])} %, globally optimal tokens "
                f"{percentage(result['global'])} % (ref. {REFERENCE_GLOBAL[trained]} %), locally optimal "
                f"{percentage(result['local'])} %."
                for trained, result in results.items()
            ),
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "thresholds": {"predicted": LEAST, "other": MOST}, "met": met, "runs": dict(results)},
    )


def _cosine_table(results: Results) -> Table:
    fields = [
        Field(title="trained", cells=[trained for trained, _ in REFERENCE], text=True),
        Field(title="SVM of least", cells=[norm for _, norm in REFERENCE], short="SVM", text=True),
    ]
    for step, rank in zip(SHOWN, (2, 3, 1, 0), strict=False):
        rows = [results[trained]["cosines"][norm][results[trained]["steps"].index(step)] for trained, norm in REFERENCE]
        fields.append(mean_field(f"{step:,} steps", rows, short=f"{step:,}", rank=rank))
    least = [min(c for c in results[trained]["cosines"][norm][-1] if c is not None) for trained, norm in REFERENCE]
    reference = [" / ".join(decimals(v) for v in values if v is not None) for values in REFERENCE.values()]
    return [
        *fields,
        Field(title="least at the end", short="least", cells=[decimals(value) for value in least], rank=2),
        Field(
            title="reference", short="ref.", cells=reference, rank=1,
            narrow=[decimals(values[-1]) for values in REFERENCE.values()],
        ),
    ]  # fmt: skip


def _token_table(results: Results) -> Table:
    titles = {"saturated": "saturated", "global": "globally optimal", "local": "locally optimal"}
    return [
        Field(title="trained", cells=list(results), text=True),
        *(
            Field(title=title, cells=[percentage(result[name]) for result in results.values()])
            for name, title in titles.items()
        ),
        Field(title="reference, globally optimal", cells=[str(REFERENCE_GLOBAL[trained]) for trained in results]),
    ]


def draw(results: Results) -> Figure:
    """Plot the mean cosine to both SVMs by the number of steps."""
    curves = {f"{trained} trained by normalised descent": result["cosines"] for trained, result in results.items()}
    return draw_cosines(curves, RECORDED, title="Cosine of trained attention to attention SVMs, by the number of steps")


LOCAL_CONVERGENCE = svm_experiment(
    "local-convergence",
    measure,
    lambda request: {trained: {"trained": trained, "seeds": request.seed_list(20)} for trained in PREDICTED},
    report,
    title="Where training attention leads",
    reproduces="training W leads to the Frobenius SVM, training K and Q to the nuclear SVM (Tarzanagh et al. 2023)",
    cost="10 s",
)
