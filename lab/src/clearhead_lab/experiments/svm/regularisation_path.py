"""The regularisation path: least loss within growing balls, compared with the SVM that it converges to."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clearhead.report.plots import finish_panel, make_panels, plot_mean
from clearhead.report.tables import Field, Table, mean_of, over_runs, plus_minus
from clearhead.report.wording import short
from clearhead.theories.max_margin import Norm
from clearhead_lab.experiments.cache import measure_cells
from clearhead_lab.experiments.experiment import Experiment, Report, Request
from clearhead_lab.experiments.svm.descent.path import regularisation_path
from clearhead_lab.experiments.svm.descent.rules import Direct, Factored
from clearhead_lab.experiments.svm.descent.solutions import PACKAGES, PREDICTED, cosines, solve_all
from clearhead_lab.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead_lab.theorems.max_margin.convergence import globally_optimal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REGULARISATION_PATH"]

N, T, D = 6, 8, 10
RADII = tuple(2.0**k for k in range(10))
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR)

Results = Mapping[str, Mapping[str, Any]]


def measure(*, trained: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Follow the path from every seed; compare it with the SVMs of the tokens selected in the largest ball."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    path = regularisation_path(
        task,
        start[:1] if trained == "W" else start,
        radii=RADII,
        parameters=Direct() if trained == "W" else Factored(0.0),
    )
    selected = path.attention[-1].argmax(dim=-1)
    solutions = {norm: solve_all(task.tokens, task.queries, selected, norm) for norm in NORMS}
    return {
        "cosines": {norm: [cosines(W, solved) for W in path.W] for norm, solved in solutions.items()},
        "residual": path.residual.tolist(),
        "global": globally_optimal(task.token_scores, selected).tolist(),
    }


def report(results: Results, request: Request) -> Report:
    """Tabulate the cosines to both SVMs, by the radius."""
    seeds = request.seed_list(20)
    last = {
        (trained, norm): mean_of(over_runs(result["cosines"][norm][-1]))
        for trained, result in results.items()
        for norm in NORMS
    }
    return Report(
        headline=f"R = {RADII[-1]:g}: cosine to the predicted SVM {last['W', Norm.FROBENIUS]} and "
        f"{last['K, Q', Norm.NUCLEAR]}, to the other {last['W', Norm.NUCLEAR]} and {last['K, Q', Norm.FROBENIUS]}",
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}. Least loss "
            "over |W|_F <= R, and over |K|^2 + |Q|^2 <= 2R, by projected steps from ball to ball. Cosines to the SVMs "
            "of the tokens selected in the largest ball: means with 95 % Student intervals. Residual: the largest sine "
            "over runs of the angle between the parameters and the negative gradient, 0 at a minimum. There is no "
            "reference for it."
        ),
        sections=[("Cosine to the SVM, by the radius", _table(results))],
        remarks=(
            "Mean cosine to the SVM of least Frobenius (F) and nuclear (N) norm, ± half of the 95 % Student interval; "
            "residual: the distance of the worst run from a minimum, as a sine.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={"seeds": seeds, "radii": RADII, "runs": dict(results)},
    )


def _table(results: Results) -> Table:
    fields = [Field(title="R", cells=[f"{radius:g}" for radius in RADII])]
    for trained, result in results.items():
        for norm in NORMS:
            means = [over_runs(values) for values in result["cosines"][norm]]
            fields.append(
                Field(
                    title=f"{trained} to {norm}",
                    short=f"{trained} to {norm[0].upper()}",
                    cells=[plus_minus(mean) for mean in means],
                    narrow=[mean_of(mean) for mean in means],
                    rank=0 if PREDICTED[trained] is norm else 1,
                )
            )
        residuals = [short(max(values)) for values in result["residual"]]
        fields.append(Field(title=f"residual of {trained}", short="residual", cells=residuals, rank=2))
    return fields


def draw(results: Results) -> "Figure":
    """Plot the cosines by the radius."""
    figure, panels = make_panels(
        len(results), title="Cosine of the regularisation path to attention SVMs, by the radius"
    )
    for axes, (trained, result) in zip(panels, results.items(), strict=True):
        for colour, norm in enumerate(NORMS):
            label = f"cosine to the SVM of least {norm} norm"
            plot_mean(axes, RADII, result["cosines"][norm], label=label, colour=colour)
        finish_panel(axes, title=f"{trained}, least loss within R", x="R", y="cosine", x_log=True, y_range=(0.0, 1.02))
    return figure


REGULARISATION_PATH = Experiment(
    name="svm/regularisation-path",
    title="The regularisation path",
    reproduces="least loss within growing balls leads to the same SVMs as descent (Tarzanagh et al. 2023)",
    cost="20 s",
    measure=measure_cells(
        measure,
        lambda request: {trained: {"trained": trained, "seeds": request.seed_list(20)} for trained in PREDICTED},
        packages=PACKAGES,
    ),
    report=report,
    options=frozenset({"seeds"}),
)
