"""Why training drifts once attention is saturated: descent amplifies rounding in the derivative of softmax."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.report.tables import Estimate, Field, Table, decimals, mean_of, over_runs, plus_minus
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.svm.descent.attention_task import evaluate, evaluate_by_autograd
from clearhead_lab.experiments.svm.descent.dynamics import train
from clearhead_lab.experiments.svm.descent.rules import Direct, Factored, NormalisedDescent
from clearhead_lab.experiments.svm.descent.solutions import PACKAGES, cosines, solve_all
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRIFT"]

N, T, D, STEPS = 6, 8, 10, 4000
SHOWN = (500, 1000, 2000, 4000)
RECORDED = (50, 100, 200, *SHOWN, 3000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: the parameters, the guard against rounding, and how the gradient is computed.

    guarded: K and Q with a penalty of machine precision, W with machine precision added to the gradient's norm
    reference: cosines of an independent implementation, by step
    """

    trained: str
    guarded: bool
    autograd: bool
    reference: Mapping[int, float] = field(default_factory=dict)

    @property
    def norm(self) -> Norm:
        """The norm that training should make least."""
        return Norm.FROBENIUS if self.trained == "W" else Norm.NUCLEAR


METHODS = {
    "K Q, penalty, exact": Method(trained="K Q", guarded=True, autograd=False),
    "K Q, penalty, autograd": Method(trained="K Q", guarded=True, autograd=True),
    "K Q, none, exact": Method(trained="K Q", guarded=False, autograd=False),
    "K Q, none, autograd": Method(trained="K Q", guarded=False, autograd=True, reference={500: 0.934, 4000: 0.662}),
    "W, floor, exact": Method(trained="W", guarded=True, autograd=False),
    "W, floor, autograd": Method(trained="W", guarded=True, autograd=True),
    "W, none, exact": Method(trained="W", guarded=False, autograd=False),
    "W, none, autograd": Method(trained="W", guarded=False, autograd=True),
}

Results = Mapping[str, Sequence[Sequence[float | None]]]


def measure(*, method: str, seeds: Sequence[int]) -> list[list[float | None]]:
    """Return the cosines to the SVM of the tokens selected at the end, by recorded step and run."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    chosen = METHODS[method]
    direct = chosen.trained == "W"
    run = train(
        task,
        start[:1] if direct else start,
        steps=STEPS,
        record=RECORDED,
        parameters=Direct() if direct else Factored() if chosen.guarded else Factored(0.0),
        rule=NormalisedDescent() if chosen.guarded or not direct else NormalisedDescent(floor=0.0),
        evaluation=evaluate_by_autograd if chosen.autograd else evaluate,
    )
    solutions = solve_all(task.tokens, task.queries, run.selected[-1], chosen.norm)
    return [cosines(W, solutions) for W in run.W]


def _at(values: Sequence[Sequence[float | None]], step: int) -> Estimate | None:
    return over_runs(values[sorted(RECORDED).index(step)])


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines by step, with exact gradients and autograd's, with and without guards."""
    seeds = request.seed_list(20)
    ends = {
        name: " to ".join(mean_of(_at(values, step)) for step in (SHOWN[0], SHOWN[-1]))
        for name, values in results.items()
        if not METHODS[name].guarded
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
        means = [_at(values, step) for values in results.values()]
        cells, narrow = [plus_minus(mean) for mean in means], [mean_of(mean) for mean in means]
        fields.append(Field(title=f"{step:,} steps", short=f"{step:,}", cells=cells, narrow=narrow, rank=rank))
    reference = [", ".join(decimals(value) for value in METHODS[name].reference.values()) or "-" for name in results]
    return [*fields, Field(title="reference", short="ref.", cells=reference, rank=1)]


def draw(results: Results) -> "Figure":
    """Plot the cosines by step."""
    figure, panels = make_panels(2, title="Training after saturation, with gradients computed in two ways")
    for axes, trained in zip(panels, ("K Q", "W"), strict=True):
        names = [name for name in METHODS if METHODS[name].trained == trained]
        for colour, name in enumerate(names):
            label = name.split(", ", 1)[1]
            plot_mean(axes, sorted(RECORDED), results[name], label=label, colour=colour)
        title = f"{trained}: cosine to the {METHODS[names[0]].norm} SVM"
        finish_panel(axes, title=title, x="steps", y="cosine", x_log=True, y_range=(0.4, 1.01))
    return figure


DRIFT = Experiment(
    name="svm/drift",
    title="Training after saturation",
    reproduces="after saturation K and Q drift without a penalty; with gradients free of rounding they do not",
    cost="30 s",
    measure=measure_cells(
        measure,
        lambda request: {name: {"method": name, "seeds": request.seed_list(20)} for name in METHODS},
        packages=PACKAGES,
    ),
    report=report,
    options=frozenset({"seeds"}),
)
