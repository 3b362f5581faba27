"""Does training select the best tokens, locally optimal tokens, or none? By the width of the tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from clearhead.report.plots import COLOURS, finish_panel, make_panels, plot_percentage
from clearhead.report.tables import Field, Table, percentage
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.solutions import (
    PREDICTED,
    selection,
    solve_all,
    svm_experiment,
    train_from_zero,
)
from clearhead_lab.experiments.svm.descent.tasks import draw_tasks

N, T, STEPS = 4, 6, 1500
WIDTHS = (2, 5, 10, 30, 100)
REFERENCE = {"W": (27, 75, 92, 97, 100), "K, Q": (40, 87, 85, 97, 100)}
"""Per cent of globally optimal runs of an independent implementation, 40 seeds, by `WIDTHS`."""

Results = Mapping[str, Mapping[str, Any]]


def measure(*, trained: str, d: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Train from W = 0; return for every run whether it saturates and whether its tokens are optimal."""
    task = draw_tasks(seeds, n=N, t=T, d=d)
    run = train_from_zero(trained, task, seeds, steps=STEPS)
    solutions = solve_all(task.tokens, task.queries, run.selected[-1], PREDICTED[trained])
    return {**selection(task, run, solutions), "solved": [solved.W is not None for solved in solutions]}


def _cell(trained: str, d: int) -> str:
    return f"{trained}, d = {d}"


def report(results: Results, request: Request) -> Report:
    """Tabulate the runs that saturate and select optimal tokens, by width."""
    seeds = request.seed_list(40)
    local = [flag for result in results.values() for flag in _local_of_saturated(result)]
    shares = {
        trained: "/".join(f"{_per_cent(results[_cell(trained, d)]['global']):.0f}" for d in WIDTHS)
        for trained in PREDICTED
    }
    return Report(
        headline=f"globally optimal {shares['W']} % for W, {shares['K, Q']} % for K, Q; "
        f"{sum(local)} of {len(local)} saturated runs locally optimal",
        setting=(
            f"{len(seeds)} tasks drawn from seeds {seeds[0]} to {seeds[-1]}: n = {N}, T = {T}; normalised descent from "
            f"W = 0 (K with standard deviation 0.1, Q = 0), {STEPS:,} steps. Per cent of runs with Wilson intervals. "
            "Locally optimal: the saturated runs whose tokens score above the support tokens of their SVM."
        ),
        sections=[("Runs that saturate and select optimal tokens", _table(results))],
        remarks=(
            "Per cent of runs with 95 % Wilson intervals; local: the saturated runs whose tokens score above the "
            "support tokens; ref.: globally optimal runs of an independent implementation.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={
            "seeds": seeds,
            "runs": [
                {"trained": trained, "d": d, **results[_cell(trained, d)]} for trained in PREDICTED for d in WIDTHS
            ],
        },
    )


def _local_of_saturated(result: Mapping[str, Any]) -> list[bool]:
    return [local for local, full in zip(result["local"], result["saturated"], strict=True) if full]


def _per_cent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / len(flags)


def _table(results: Results) -> Table:
    cells = [(trained, d, results[_cell(trained, d)]) for trained in PREDICTED for d in WIDTHS]
    return [
        Field(title="trained", cells=[trained for trained, _, _ in cells], text=True),
        Field(title="d", cells=[str(d) for _, d, _ in cells]),
        Field(title="saturated", cells=[percentage(result["saturated"]) for *_, result in cells], rank=2),
        Field(title="globally optimal", short="global", cells=[percentage(result["global"]) for *_, result in cells]),
        Field(
            title="locally optimal", short="local", rank=1,
            cells=[percentage(_local_of_saturated(result)) for *_, result in cells],
        ),
        Field(
            title="reference, globally optimal", short="ref.", rank=1,
            cells=[str(REFERENCE[trained][WIDTHS.index(d)]) for trained, d, _ in cells],
        ),
    ]  # fmt: skip


def draw(results: Results) -> Figure:
    """Plot the percentages by the width of tokens."""
    figure, panels = make_panels(len(PREDICTED), title="Runs that select optimal tokens, by the width of tokens")
    for axes, trained in zip(panels, PREDICTED, strict=True):
        each = [results[_cell(trained, d)] for d in WIDTHS]
        flags = {
            "globally optimal": [result["global"] for result in each],
            "locally optimal, of saturated": [_local_of_saturated(result) for result in each],
            "saturated": [result["saturated"] for result in each],
        }
        for colour, (label, runs) in enumerate(flags.items()):
            plot_percentage(axes, WIDTHS, runs, label=label, colour=colour)
        axes.plot(WIDTHS, REFERENCE[trained], "o", color=COLOURS[5], markersize=4, label="reference, globally optimal")
        title = f"{trained} trained"
        finish_panel(axes, title=title, x="width d of tokens", y="per cent of runs", x_log=True, y_range=(0.0, 102.0))
    return figure


CONVERGENCE_TYPE = svm_experiment(
    "convergence-type",
    measure,
    lambda request: {
        _cell(trained, d): {"trained": trained, "d": d, "seeds": request.seed_list(40)}
        for trained in PREDICTED
        for d in WIDTHS
    },
    report,
    title="Which tokens training selects, by the width of tokens",
    reproduces="training finds the best tokens if tokens are wide; saturated runs find locally optimal tokens",
    cost="1 min",
)
