"""Why training drifts once attention is saturated: descent amplifies rounding in the derivative of softmax."""

import dataclasses
from collections.abc import Mapping, Sequence

from clearhead.report.plots import finish_panel, make_panels
from clearhead.report.tables import Field, Table
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.estimates import decimals, mean_field, mean_of, over_runs, plot_mean
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.rules import Factored, NormalisedDescent
from clearhead_lab.experiments.svm.descent.solutions import Method, cosines, solve_all, svm_experiment, train_by

N, T, D, STEPS = 6, 8, 10, 4000
SHOWN = (500, 1000, 2000, 4000)
RECORDED = (50, 100, 200, *SHOWN, 3000)


GUARDS = {
    "K Q, penalty": Method(parameters=Factored()),
    "K Q, none": Method(parameters=Factored(0.0)),
    "W, floor": Method(rule=NormalisedDescent()),
    "W, none": Method(rule=NormalisedDescent(floor=0.0)),
}
"""Guards against rounding: a penalty of machine precision, and machine precision added to the gradient's norm."""
METHODS = {
    f"{name}, {gradient}": dataclasses.replace(method, autograd=gradient == "autograd")
    for name, method in GUARDS.items()
    for gradient in ("exact", "autograd")
}
UNGUARDED = [name for name in METHODS if ", none, " in name]
NORMS = {"K Q": Norm.NUCLEAR, "W": Norm.FROBENIUS}
"""The norm that training should make least."""
REFERENCE = {"K Q, none, autograd": (0.934, 0.662)}
"""Cosines of an independent implementation, at 500 and 4,000 steps."""

Results = Mapping[str, Sequence[Sequence[float | None]]]


def measure(*, method: str, seeds: Sequence[int]) -> list[list[float | None]]:
    """Return the cosines to the SVM of the tokens selected at the end, by recorded step and run."""
    task, run = train_by(METHODS[method], seeds, n=N, t=T, d=D, steps=STEPS, record=RECORDED)
    solutions = solve_all(task.tokens, task.queries, run.selected[-1], NORMS[_trained(method)])
    return [cosines(W, solutions) for W in run.W]


def _trained(method: str) -> str:
    return method.split(", ", 1)[0]


def _at(values: Sequence[Sequence[float | None]], step: int) -> Sequence[float | None]:
    return values[sorted(RECORDED).index(step)]


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines by step, with exact gradients and autograd's, with and without guards."""
    seeds = request.seed_list(20)
    ends = {
        name: " to ".join(mean_of(over_runs(_at(results[name], step))) for step in (SHOWN[0], SHOWN[-1]))
        for name in UNGUARDED
    }
    return Report(
        headline=f"unguarded, from step {SHOWN[0]:,} to {SHOWN[-1]:,}: "
        + "; ".join(f"{name.replace(', none', '')} {change}" for name, change in ends.items()),
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}; normalised "
            "descent with rate 0.1: K and Q with and without a penalty of machine precision, W with and without "
            "machine precision added to the norm of its gradient. The gradient is autograd's, or exact: the weight of "
            "the selected token is minus the sum of the others. Cosines to the SVM (nuclear for K and Q, Frobenius for "
            "W) of the tokens selected at the end: means with 95 % Student intervals."
        ),
        sections=[("Cosine to the SVM, by the number of steps", _table(results))],
        remarks=(
            "Mean cosine to the predicted SVM by the number of steps, ± half of the 95 % Student interval; exact: "
            "gradients without the rounding of autograd; ref.: an independent implementation, at 500 and 4,000 steps.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "steps": sorted(RECORDED), "cosines": dict(results)},
    )


def _table(results: Results) -> Table:
    fields = [Field(title="trained, guarded by, gradient", short="trained", cells=list(results), text=True)]
    for step, rank in zip(SHOWN, (0, 2, 3, 0), strict=False):
        rows = [_at(values, step) for values in results.values()]
        fields.append(mean_field(f"{step:,} steps", rows, short=f"{step:,}", rank=rank))
    reference = [", ".join(decimals(value) for value in REFERENCE.get(name, ())) or "-" for name in results]
    return [*fields, Field(title="reference", short="ref.", cells=reference, rank=1)]


def draw(results: Results) -> Figure:
    """Plot the cosines by step."""
    figure, panels = make_panels(2, title="Training after saturation, with gradients computed in two ways")
    for axes, trained in zip(panels, NORMS, strict=True):
        names = [name for name in METHODS if _trained(name) == trained]
        for colour, name in enumerate(names):
            label = name.split(", ", 1)[1]
            plot_mean(axes, sorted(RECORDED), results[name], label=label, colour=colour)
        title = f"{trained}: cosine to the {NORMS[trained]} SVM"
        finish_panel(axes, title=title, x="steps", y="cosine", x_log=True, y_range=(0.4, 1.01))
    return figure


DRIFT = svm_experiment(
    "drift",
    measure,
    lambda request: {name: {"method": name, "seeds": request.seed_list(20)} for name in METHODS},
    report,
    title="Training after saturation",
    reproduces="after saturation K and Q drift without a penalty; with gradients free of rounding they do not",
    cost="30 s",
)
