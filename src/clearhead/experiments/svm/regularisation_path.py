"""The regularisation path: least loss within growing balls, beside the SVM that it turns to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.svm.descent.parameters import Direct, Factored
from clearhead.experiments.svm.descent.path import regularisation_path
from clearhead.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead.experiments.svm.solutions import ROOMS, nearness, solve_all
from clearhead.experiments.tables import Field, as_columns, as_markdown, mean_of, over_runs, plus_minus
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Panel, picture
from clearhead.report.wording import short
from clearhead.theories.max_margin import Norm
from clearhead.theories.max_margin.optimality import globally_optimal

__all__ = ["REGULARISATION_PATH"]

NAME = "svm/regularisation-path"
N, T, D = 6, 8, 10
RADII = tuple(2.0**k for k in range(10))
OWN = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}


def measure(*, trained: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Follow the path from every seed, and compare it with the SVMs of what is selected in the largest ball."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    found = regularisation_path(
        task,
        start[:1] if trained == "W" else start,
        radii=RADII,
        parameters=Direct() if trained == "W" else Factored(0.0),
    )
    selected = found.attention[-1].argmax(dim=-1)
    near = {}
    for norm in OWN.values():
        solutions = solve_all(task.tokens, task.queries, selected, norm)
        near[norm] = [nearness(W, solutions) for W in found.W]
    return {
        "near": near,
        "slant": found.slant.tolist(),
        "global": globally_optimal(task.token_scores, selected).tolist(),
    }


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 20)
    found: dict[str, Mapping[str, Any]] = {}
    for place, trained in enumerate(OWN):
        request.tell(f"{trained}: {len(seeds)} paths", place, len(OWN))
        path = folder / "measured" / f"{trained.replace(', ', '')}.json"
        found[trained] = kept(path, measure, {"trained": trained, "seeds": seeds}, rooms=ROOMS)
    table, command = _table(found), command_of(NAME, request)
    page = write_page(
        folder,
        title="The regularisation path",
        command=command,
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}. Least loss "
            "over |W|_F <= R, and over |K|^2 + |Q|^2 <= 2R, by projected steps from ball to ball. Cosines to the SVMs "
            "of the tokens selected in the largest ball: means with Student's 95 % intervals. Slant: the largest sine "
            "over runs of the angle between parameters and minus their gradient, 0 at a minimum. The prototype "
            "has no figures for it."
        ),
        tables=[("Cosine to the SVM, by the radius", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(found))
    last = {
        (trained, norm): mean_of(over_runs(found[trained]["near"][norm][-1]))
        for trained in OWN
        for norm in OWN.values()
    }
    return Outcome(
        headline=f"R = {RADII[-1]:g}: own SVM {last['W', Norm.FROBENIUS]} and {last['K, Q', Norm.NUCLEAR]}, "
        f"the other's {last['W', Norm.NUCLEAR]} and {last['K, Q', Norm.FROBENIUS]}",
        tables=as_columns(table),
        remarks=(
            "Mean cosine to the SVM of least Frobenius (F) and nuclear (N) norm, ± half of Student's 95 % interval; "
            "slant: how far the worst run is from a minimum, as a sine.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "radii": RADII, "runs": found},
    )


def _table(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    fields = [Field(title="R", cells=[f"{radius:g}" for radius in RADII])]
    for trained, one in found.items():
        for norm in (Norm.FROBENIUS, Norm.NUCLEAR):
            each = [over_runs(cosines) for cosines in one["near"][norm]]
            own = OWN[trained] is norm
            fields.append(
                Field(
                    title=f"{trained} to {norm}",
                    short=f"{trained} to {norm[0].upper()}",
                    cells=[plus_minus(e) for e in each],
                    narrow=[mean_of(e) for e in each],
                    rank=0 if own else 1,
                )
            )
        slants = [short(max(at)) for at in one["slant"]]
        fields.append(Field(title=f"slant of {trained}", short="slant", cells=slants, rank=2))
    return fields


def _picture(found: Mapping[str, Mapping[str, Any]]) -> str:
    panels = [
        Panel(
            title=f"{trained}, least loss within R",
            x_label="R",
            y_label="cosine",
            lines=[
                line_over_runs(f"cosine to the SVM of least {norm} norm", RADII, one["near"][norm], colour=colour)
                for colour, norm in enumerate((Norm.FROBENIUS, Norm.NUCLEAR))
            ],
            x_log=True,
            y_axis=Axis(low=0.0, high=1.02),
        )
        for trained, one in found.items()
    ]
    return picture(panels, title="Cosine of the regularisation path to attention SVMs, by the radius")


REGULARISATION_PATH = Experiment(
    name=NAME,
    reproduces="least loss within growing balls leads to the same SVMs as descent (Tarzanagh et al. 2023)",
    cost="20 s",
    run=_run,
    options=frozenset({"seeds"}),
)
