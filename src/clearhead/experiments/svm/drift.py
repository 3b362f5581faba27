"""Why training drifts once attention is saturated: rounding in the derivative of softmax, magnified."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.svm.descent.attention_task import evaluate, evaluate_by_autograd
from clearhead.experiments.svm.descent.dynamics import train
from clearhead.experiments.svm.descent.parameters import Direct, Factored
from clearhead.experiments.svm.descent.rules import NormalisedDescent
from clearhead.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead.experiments.svm.solutions import ROOMS, nearness, solve_all
from clearhead.experiments.tables import Field, as_columns, as_markdown, decimals, mean_of, over_runs, plus_minus
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Panel, picture
from clearhead.theories.max_margin import Norm

__all__ = ["DRIFT"]

NAME = "svm/drift"
N, T, D, STEPS = 6, 8, 10, 4000
SHOWN = (500, 1000, 2000, 4000)
KEPT = (50, 100, 200, *SHOWN, 3000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What is trained and guarded, and how the gradient is computed; cosines of the prototype by the step.

    guarded: with the penalty of machine precision on K and Q, and for W with as much added to the gradient's length
    """

    trained: str
    guarded: bool
    autograd: bool
    of_prototype: Mapping[int, float] = field(default_factory=dict)

    @property
    def norm(self) -> Norm:
        """The norm that training should make least."""
        return Norm.FROBENIUS if self.trained == "W" else Norm.NUCLEAR


WAYS = {
    "K Q, penalty, exact": _Way(trained="K Q", guarded=True, autograd=False),
    "K Q, penalty, autograd": _Way(trained="K Q", guarded=True, autograd=True),
    "K Q, none, exact": _Way(trained="K Q", guarded=False, autograd=False),
    "K Q, none, autograd": _Way(trained="K Q", guarded=False, autograd=True, of_prototype={500: 0.934, 4000: 0.662}),
    "W, floor, exact": _Way(trained="W", guarded=True, autograd=False),
    "W, floor, autograd": _Way(trained="W", guarded=True, autograd=True),
    "W, none, exact": _Way(trained="W", guarded=False, autograd=False),
    "W, none, autograd": _Way(trained="W", guarded=False, autograd=True),
}


def measure(*, way: str, seeds: Sequence[int]) -> list[list[float | None]]:
    """Cosines to the SVM of the tokens selected in the end, by kept step and run."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    chosen = WAYS[way]
    alone = chosen.trained == "W"
    found = train(
        task,
        start[:1] if alone else start,
        steps=STEPS,
        keep=KEPT,
        parameters=Direct() if alone else Factored() if chosen.guarded else Factored(0.0),
        rule=NormalisedDescent() if chosen.guarded or not alone else NormalisedDescent(floor=0.0),
        evaluation=evaluate_by_autograd if chosen.autograd else evaluate,
    )
    solutions = solve_all(task.tokens, task.queries, found.selected[-1], chosen.norm)
    return [nearness(W, solutions) for W in found.W]


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 20)
    found: dict[str, list[list[float | None]]] = {}
    for place, way in enumerate(WAYS):
        request.tell(way, place, len(WAYS))
        path = folder / "measured" / f"{way.replace(', ', '-').replace(' ', '-')}.json"
        found[way] = kept(path, measure, {"way": way, "seeds": seeds}, rooms=ROOMS)
    table, command = _table(found), command_of(NAME, request)
    page = write_page(
        folder,
        title="Training after saturation",
        command=command,
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}; normalised "
            "descent, rate 0.1: K and Q with and without the penalty of machine precision, W with and without as much "
            "added to the length of its gradient. The gradient is autograd's, or an exact one, in which the weight of "
            "the selected token is minus the sum of the others'. Cosines to the SVM (nuclear for K and Q, Frobenius "
            "for W) of the tokens selected in the end: means with Student's 95 % intervals."
        ),
        tables=[("Cosine to the SVM, by the number of steps", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(found))
    ends = {way: " to ".join(mean_of(_at(found[way], step)) for step in (SHOWN[0], SHOWN[-1])) for way in WAYS}
    return Outcome(
        headline="unguarded from step 500 to 4,000: "
        + "; ".join(f"{way.replace(', none', '')} {ends[way]}" for way in WAYS if not WAYS[way].guarded),
        tables=as_columns(table),
        remarks=(
            "Mean cosine to the own SVM after so many steps, ± half of Student's 95 % interval; exact: gradients "
            "without autograd's rounding; prot.: the prototype's run, at 500 and 4,000 steps.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "steps": sorted(KEPT), "near": found},
    )


def _at(cosines: Sequence[Sequence[float | None]], step: int) -> Any:
    return over_runs(cosines[sorted(KEPT).index(step)])


def _table(found: Mapping[str, Sequence[Sequence[float | None]]]) -> list[Field]:
    fields = [Field(title="trained, guarded by, gradient", short="trained", cells=list(found), words=True)]
    for place, step in enumerate(SHOWN):
        each = [_at(cosines, step) for cosines in found.values()]
        rank = (0, 2, 3, 0)[place]
        cells, narrow = [plus_minus(e) for e in each], [mean_of(e) for e in each]
        fields.append(Field(title=f"{step:,} steps", short=f"{step:,}", cells=cells, narrow=narrow, rank=rank))
    told = [", ".join(decimals(value) for value in WAYS[way].of_prototype.values()) or "-" for way in found]
    return [*fields, Field(title="prototype", short="prot.", cells=told, rank=1)]


def _picture(found: Mapping[str, Sequence[Sequence[float | None]]]) -> str:
    panels = []
    for trained in ("K Q", "W"):
        own = [way for way in WAYS if WAYS[way].trained == trained]
        lines = [
            line_over_runs(way.split(", ", 1)[1], sorted(KEPT), found[way], colour=colour)
            for colour, way in enumerate(own)
        ]
        panels.append(
            Panel(
                title=f"{trained}: cosine to the {WAYS[own[0]].norm} SVM",
                x_label="steps",
                y_label="cosine",
                lines=lines,
                x_log=True,
                y_axis=Axis(low=0.4, high=1.01),
            )
        )
    return picture(panels, title="Training after saturation, with gradients computed in two ways")


DRIFT = Experiment(
    name=NAME,
    reproduces="after saturation K and Q drift without a penalty; with gradients free of rounding they do not",
    cost="30 s",
    run=_run,
    options=frozenset({"seeds"}),
)
