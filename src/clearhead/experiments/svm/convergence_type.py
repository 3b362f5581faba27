"""Whether training selects the best tokens, good ones, or none, by the width of the tokens."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_of_shares, seeds_of, write_page
from clearhead.experiments.svm.descent.dynamics import train
from clearhead.experiments.svm.descent.parameters import Direct, Factored
from clearhead.experiments.svm.descent.tasks import draw_small_start, draw_tasks
from clearhead.experiments.svm.solutions import ROOMS, solve_all
from clearhead.experiments.tables import Field, as_columns, as_markdown, counted
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Line, Panel, picture
from clearhead.theories.max_margin import Norm
from clearhead.theories.max_margin.optimality import globally_optimal, locally_optimal, saturated

__all__ = ["CONVERGENCE_TYPE"]

NAME = "svm/convergence-type"
N, T, STEPS = 4, 6, 1500
WIDTHS = (2, 5, 10, 30, 100)
OWN = {"W": Norm.FROBENIUS, "K, Q": Norm.NUCLEAR}
PROTOTYPE = {"W": (27, 75, 92, 97, 100), "K, Q": (40, 87, 85, 97, 100)}
"""Per cent of globally optimal runs of the prototype, 40 seeds, by `WIDTHS`."""


def measure(*, trained: str, d: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train from W = 0, and ask of every run whether it saturates and how good its tokens are."""
    task = draw_tasks(seeds, n=N, t=T, d=d)
    start = (torch.zeros(len(seeds), d, d).double(),) if trained == "W" else draw_small_start(seeds, (d, d))
    found = train(task, start, steps=STEPS, parameters=Direct() if trained == "W" else Factored())
    selected, scores = found.selected[-1], task.token_scores
    solutions = solve_all(task.tokens, task.queries, selected, OWN[trained])
    return {
        "saturated": saturated(found.attention[-1]).tolist(),
        "global": globally_optimal(scores, selected).tolist(),
        "local": [
            bool(locally_optimal(scores[run], selected[run], solved.support)) for run, solved in enumerate(solutions)
        ],
        "solved": [solved.W is not None for solved in solutions],
    }


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 40)
    cells = [(trained, d) for trained in OWN for d in WIDTHS]
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for place, (trained, d) in enumerate(cells):
        request.tell(f"{trained}, d = {d}", place, len(cells))
        path = folder / "measured" / f"{trained.replace(', ', '')}-{d}.json"
        found[trained, d] = kept(path, measure, {"trained": trained, "d": d, "seeds": seeds}, rooms=ROOMS)
    table = _table(found)
    command = command_of(NAME, request)
    page = write_page(
        folder,
        title="Which tokens training selects, by the width of tokens",
        command=command,
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}; normalised descent from "
            f"W = 0 (K of spread 0.1, Q = 0), {STEPS:,} steps. Per cent of runs with Wilson's intervals; locally "
            "optimal: of the saturated runs, those whose tokens score above the support tokens of their SVM."
        ),
        tables=[("Runs that saturate, and select optimal tokens", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(found))
    local = [flag for one in found.values() for flag in _of_saturated(one)]
    return Outcome(
        headline=f"globally optimal {_shares(found, 'W')} % for W, {_shares(found, 'K, Q')} % for K, Q; "
        f"{sum(local)} of {len(local)} saturated runs locally optimal",
        tables=as_columns(table),
        remarks=(
            "Per cent of runs, with Wilson's 95 % intervals; local: of the saturated runs, those whose tokens score "
            "above the support tokens; prot.: globally optimal in the prototype's run.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={
            "command": command,
            "seeds": seeds,
            "runs": [{"trained": trained, "d": d, **one} for (trained, d), one in found.items()],
        },
    )


def _of_saturated(one: Mapping[str, Any]) -> list[bool]:
    return [local for local, full in zip(one["local"], one["saturated"], strict=True) if full]


def _shares(found: Mapping[tuple[str, int], Mapping[str, Any]], trained: str) -> str:
    each = (found[trained, d]["global"] for d in WIDTHS)
    return "/".join(f"{100 * sum(flags) / len(flags):.0f}" for flags in each)


def _table(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[Field]:
    rows = list(found.items())
    return [
        Field(title="trained", cells=[trained for (trained, _), _ in rows], words=True),
        Field(title="d", cells=[str(d) for (_, d), _ in rows]),
        Field(title="saturated", cells=[counted(one["saturated"]) for _, one in rows], rank=2),
        Field(title="globally optimal", short="global", cells=[counted(one["global"]) for _, one in rows]),
        Field(title="locally optimal", short="local", cells=[counted(_of_saturated(one)) for _, one in rows], rank=1),
        Field(
            title="prototype, globally optimal",
            short="prot.",
            cells=[str(PROTOTYPE[trained][WIDTHS.index(d)]) for (trained, d), _ in rows],
            rank=1,
        ),
    ]


def _picture(found: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    panels = []
    for trained in OWN:
        each = [found[trained, d] for d in WIDTHS]
        panels.append(
            Panel(
                title=f"{trained} trained",
                x_label="width d of tokens",
                y_label="per cent of runs",
                lines=[
                    line_of_shares("globally optimal", WIDTHS, [one["global"] for one in each], colour=0),
                    line_of_shares("locally optimal, of saturated", WIDTHS, [_of_saturated(e) for e in each], colour=1),
                    line_of_shares("saturated", WIDTHS, [one["saturated"] for one in each], colour=2),
                    Line(name="prototype, global", x=WIDTHS, y=PROTOTYPE[trained], colour=5, points=True),
                ],
                x_log=True,
                y_axis=Axis(low=0.0, high=102.0),
            )
        )
    return picture(panels, title="Runs that select optimal tokens, by the width of tokens")


CONVERGENCE_TYPE = Experiment(
    name=NAME,
    reproduces="wide tokens let training find the best tokens; all saturated runs find locally optimal ones",
    cost="1 min",
    run=_run,
    options=frozenset({"seeds"}),
)
