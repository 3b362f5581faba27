"""Which rule of training leads to which margin: cosines of what each rule makes to SVMs of three norms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.svm.descent.attention_task import evaluate, evaluate_by_autograd
from clearhead.experiments.svm.descent.dynamics import train
from clearhead.experiments.svm.descent.parameters import Direct, Factored, Parameterisation
from clearhead.experiments.svm.descent.rules import Adam, GradientDescent, NormalisedDescent, Rule, SignDescent
from clearhead.experiments.svm.descent.tasks import draw_start, draw_tasks
from clearhead.experiments.svm.solutions import ROOMS, nearness, solve_all
from clearhead.experiments.tables import (
    Field,
    as_columns,
    as_markdown,
    counted,
    decimals,
    mean_of,
    over_runs,
    plus_minus,
)
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Panel, picture
from clearhead.theories.max_margin import Norm
from clearhead.theories.max_margin.optimality import saturated

__all__ = ["OPTIMISERS"]

NAME = "svm/optimisers"
N, T, D, STEPS = 6, 8, 10, 3000
KEPT = (30, 100, 300, 1000, 3000)
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR, Norm.MAX_ENTRY)
SHORT = {Norm.FROBENIUS: "Frob.", Norm.NUCLEAR: "nucl.", Norm.MAX_ENTRY: "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to train, and the cosines of the prototype's run to SVMs of `NORMS`; none for what it does not have.

    autograd: with torch's own gradient, which is rounding alone once attention is saturated
    """

    rule: Rule
    autograd: bool = False
    parameters: Parameterisation = field(default_factory=Direct)
    of_prototype: tuple[float, ...] = ()


WAYS = {
    "W, normalised": _Way(rule=NormalisedDescent(0.1), of_prototype=(0.996, 0.864, 0.778)),
    "W, plain, rate 5": _Way(rule=GradientDescent(5.0), of_prototype=(0.930, 0.839, 0.739)),
    "W, sign": _Way(rule=SignDescent(0.01)),
    "W, sign, autograd": _Way(rule=SignDescent(0.01), autograd=True, of_prototype=(0.781, 0.639, 0.898)),
    "W, Adam": _Way(rule=Adam(0.01), of_prototype=(0.857, 0.719, 0.818)),
    "W, AdamW": _Way(rule=Adam(0.01, decay=0.1), of_prototype=(0.854, 0.715, 0.840)),
    "K Q, Adam": _Way(rule=Adam(0.01), parameters=Factored(0.0), of_prototype=(0.783, 0.818, 0.654)),
    "K Q, normalised": _Way(rule=NormalisedDescent(0.1), parameters=Factored()),
}


def measure(*, way: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Train in one way from every seed, and compare with the SVMs of what was selected in the end."""
    task = draw_tasks(seeds, n=N, t=T, d=D)
    start = draw_start(seeds, (D, D), (D, D))
    chosen = WAYS[way]
    first = start[:1] if isinstance(chosen.parameters, Direct) else start
    found = train(
        task,
        first,
        steps=STEPS,
        keep=KEPT,
        parameters=chosen.parameters,
        rule=chosen.rule,
        evaluation=evaluate_by_autograd if chosen.autograd else evaluate,
    )
    selected = found.selected[-1]
    near = {}
    for norm in NORMS:
        solutions = solve_all(task.tokens, task.queries, selected, norm)
        near[norm] = [nearness(W, solutions) for W in found.W]
    return {
        "near": near,
        "saturated": saturated(found.attention[-1]).tolist(),
        "largest": found.largest[-1].mean(dim=-1).tolist(),
    }


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 40)
    found: dict[str, Mapping[str, Any]] = {}
    for place, way in enumerate(WAYS):
        request.tell(way, place, len(WAYS))
        path = folder / "measured" / f"{way.replace(', ', '-').replace(' ', '-')}.json"
        found[way] = kept(path, measure, {"way": way, "seeds": seeds}, rooms=ROOMS)
    table, command = _table(found), command_of(NAME, request)
    page = write_page(
        folder,
        title="Which rule of training leads to which margin",
        command=command,
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}, d = {D}; {STEPS:,} "
            "steps. Rates: 0.1 for normalised descent, 5 for plain, 0.01 for the others; AdamW decays by 0.1; the "
            "prototype does not say its rates. Gradients are exact however saturated attention is, but for the row "
            "that names autograd. Cosines to the SVMs of the tokens selected in the end: means with "
            "Student's 95 % intervals."
        ),
        tables=[("Cosine to the SVM of least norm, by the norm", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(found))
    near = {way: {norm: mean_of(over_runs(one["near"][norm][-1])) for norm in NORMS} for way, one in found.items()}
    return Outcome(
        headline=f"W normalised {near['W, normalised'][Norm.FROBENIUS]} to Frobenius, "
        f"K Q {near['K Q, normalised'][Norm.NUCLEAR]} to nuclear, sign {near['W, sign'][Norm.MAX_ENTRY]} to max-entry",
        tables=as_columns(table),
        remarks=(
            "Mean cosine to the SVM of least Frobenius, nuclear and max-entry norm, ± half of Student's 95 % interval; "
            "autograd: torch's gradient, rounding alone after saturation; prot.: the prototype's run.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={"command": command, "seeds": seeds, "runs": found},
    )


def _table(found: Mapping[str, Mapping[str, Any]]) -> list[Field]:
    rows = list(found.items())
    fields = [Field(title="trained", cells=[way for way, _ in rows], words=True)]
    for norm in NORMS:
        each = [over_runs(one["near"][norm][-1]) for _, one in rows]
        cells, narrow = [plus_minus(e) for e in each], [mean_of(e) for e in each]
        fields.append(Field(title=str(norm), short=SHORT[norm], cells=cells, narrow=narrow))
    told = [" / ".join(decimals(value) for value in WAYS[way].of_prototype) or "-" for way, _ in rows]
    return [
        *fields,
        Field(
            title="saturated, per cent", short="saturated", cells=[counted(one["saturated"]) for _, one in rows], rank=2
        ),
        Field(title="prototype", short="prot.", cells=told, rank=1),
    ]


def _picture(found: Mapping[str, Mapping[str, Any]]) -> str:
    panels = [
        Panel(
            title=way,
            x_label="steps",
            y_label="cosine",
            lines=[
                line_over_runs(f"to the SVM of least {norm} norm", KEPT, found[way]["near"][norm], colour=colour)
                for colour, norm in enumerate(NORMS)
            ],
            x_log=True,
            y_axis=Axis(low=0.0, high=1.02),
        )
        for way in ("W, normalised", "K Q, normalised", "W, sign", "W, Adam")
    ]
    return picture(panels, title="Cosines of trained attention to attention SVMs of three norms")


OPTIMISERS = Experiment(
    name=NAME,
    reproduces="the rule of training decides which SVM it leads to: Frobenius, nuclear or max-entry norm",
    cost="30 s",
    run=_run,
    options=frozenset({"seeds"}),
)
