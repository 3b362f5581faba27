"""The ranks of attention SVMs: full where the Frobenius norm is least, low where the nuclear norm is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from clearhead.experiments.cache import kept
from clearhead.experiments.experiment import RESULT, Experiment, Outcome, Request, write_text
from clearhead.experiments.seed_runs import PICTURE, command_of, line_over_runs, seeds_of, write_page
from clearhead.experiments.svm.descent.tasks import draw_tasks
from clearhead.experiments.svm.solutions import ROOMS
from clearhead.experiments.tables import Field, as_columns, as_markdown, over_runs
from clearhead.report.chart_axis import Axis
from clearhead.report.line_chart import Panel, picture
from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm

__all__ = ["RANK"]

NAME = "svm/rank"
SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
"""n and T, as published."""
WIDTHS = (1, 2, 3, 4, 5, 10, 15, 20)
NEGLIGIBLE = 1e-7
"""Singular values of a W with a margin of one that count as zero, as published."""
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR)
PROTOTYPE: dict[int, dict[int, tuple[float, float]]] = {
    5: {2: (2, 1.8), 3: (3, 2.3), 5: (4.8, 2.6), 10: (5, 2.4), 20: (5, 2.3)},
    10: {2: (2, 1.8), 3: (3, 2.8), 5: (5, 3.6), 10: (10, 3.5), 20: (10, 3.7)},
}
"""Mean ranks of the prototype's run by n and d, Frobenius and nuclear, at T = 5."""


def measure(*, n: int, t: int, d: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Ranks of the SVMs of the best tokens of every task that has one."""
    task = draw_tasks(seeds, n=n, t=t, d=d)
    best = task.token_scores.argmax(dim=-1)
    ranks: dict[str, list[int | None]] = {norm: [] for norm in NORMS}
    for run in range(len(seeds)):
        for norm in NORMS:
            ranks[norm].append(_rank(attention_svm(task.tokens[run], task.queries[run], best[run], norm=norm)))
    return ranks


def _rank(solved: MaxMargin) -> int | None:
    return None if solved.W is None else int((torch.linalg.svdvals(solved.W) > NEGLIGIBLE).sum())


def _run(request: Request, folder: Path) -> Outcome:
    seeds = seeds_of(request, 20)
    cells = [(n, t, d) for n, t in SIZES for d in WIDTHS]
    found: dict[tuple[int, int, int], Mapping[str, Any]] = {}
    for place, (n, t, d) in enumerate(cells):
        request.tell(f"n = {n}, T = {t}, d = {d}", place, len(cells))
        settings = {"n": n, "t": t, "d": d, "seeds": seeds}
        found[n, t, d] = kept(folder / "measured" / f"{n}-{t}-{d}.json", measure, settings, rooms=ROOMS)
    table = _table(found)
    command = command_of(NAME, request)
    page = write_page(
        folder,
        title="Ranks of attention SVMs",
        command=command,
        setting=(
            f"{len(seeds)} tasks of each size, drawn from seeds {seeds[0]} to {seeds[-1]}; the SVM of their best "
            "tokens; mean ranks over the tasks that have one. The rank of the first cannot pass n or d, as it is a sum "
            "of one matrix of rank one for each query. Published with 100 feasible tasks for each size (--seeds 100)."
        ),
        tables=[("Mean rank, by the norm that is least", as_markdown(table))],
    )
    write_text(folder / PICTURE, _picture(found))
    largest = (10, 5, WIDTHS[-1])
    means = [over_runs(found[largest][norm]) for norm in NORMS]
    feasible = sum(rank is not None for one in found.values() for rank in one[Norm.FROBENIUS])
    return Outcome(
        headline=f"n = 10, d = {WIDTHS[-1]}: rank {_short(means[0])} Frobenius, {_short(means[1])} nuclear; "
        f"{feasible} of {len(cells) * len(seeds)} tasks feasible",
        tables=as_columns(table),
        remarks=(
            "Mean rank of the SVM of least Frobenius and of least nuclear norm over the feasible tasks; prot.: the "
            "same of the prototype's run.",
        ),
        files=(page, folder / PICTURE, folder / RESULT),
        facts={
            "command": command,
            "seeds": seeds,
            "runs": [{"n": n, "T": t, "d": d, "ranks": one} for (n, t, d), one in found.items()],
        },
    )


def _short(found: Any) -> str:
    return "-" if found is None else f"{found.mean:.1f}"


def _table(found: Mapping[tuple[int, int, int], Mapping[str, Any]]) -> list[Field]:
    rows = list(found.items())
    counts = [(sum(r is not None for r in one[Norm.FROBENIUS]), len(one[Norm.FROBENIUS])) for _, one in rows]
    of_prototype = [PROTOTYPE.get(n, {}).get(d) if t == 5 else None for (n, t, d), _ in rows]
    return [
        Field(title="n", cells=[str(n) for (n, _, _), _ in rows]),
        Field(title="T", cells=[str(t) for (_, t, _), _ in rows]),
        Field(title="d", cells=[str(d) for (_, _, d), _ in rows]),
        Field(title="feasible", cells=[f"{some} of {all_}" for some, all_ in counts], rank=1),
        *(Field(title=str(norm), cells=[_short(over_runs(one[norm])) for _, one in rows]) for norm in NORMS),
        Field(
            title="prototype",
            short="prot.",
            cells=["" if pair is None else f"{pair[0]:g}, {pair[1]:g}" for pair in of_prototype],
            rank=2,
        ),
    ]


def _picture(found: Mapping[tuple[int, int, int], Mapping[str, Any]]) -> str:
    panels = [
        Panel(
            title=f"n = {n} sequences of T = {t} tokens",
            x_label="width d of tokens",
            y_label="mean rank",
            lines=[
                line_over_runs(f"least {norm} norm", WIDTHS, [found[n, t, d][norm] for d in WIDTHS], colour=colour)
                for colour, norm in enumerate(NORMS)
            ],
            x_axis=Axis(low=0, high=WIDTHS[-1] + 0.5),
            y_axis=Axis(low=0, high=max(n for n, _ in SIZES) + 0.5),
        )
        for n, t in SIZES[:4]
    ]
    return picture(panels, title="Mean ranks of attention SVMs, by the width of tokens")


RANK = Experiment(
    name=NAME,
    reproduces="the nuclear SVM has a low rank, the Frobenius SVM the full one (Tarzanagh et al. 2023)",
    cost="30 s",
    run=_run,
    options=frozenset({"seeds"}),
)
