"""The ranks of attention SVMs: full for the least Frobenius norm, low for the least nuclear norm."""

from collections.abc import Mapping, Sequence

import torch

from clearhead.report.plots import finish_panel, make_panels
from clearhead.report.tables import Field, Table
from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead_lab.experiments.estimates import over_runs, plot_mean
from clearhead_lab.experiments.experiment import Figure, Report, Request
from clearhead_lab.experiments.svm.descent.solutions import svm_experiment
from clearhead_lab.experiments.svm.descent.tasks import draw_tasks

SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
"""n and T, as published."""
WIDTHS = (1, 2, 3, 4, 5, 10, 15, 20)
NEGLIGIBLE = 1e-7
"""Singular values below this count as zero, as published; W has a margin of one."""
NORMS = (Norm.FROBENIUS, Norm.NUCLEAR)
REFERENCE: dict[int, dict[int, tuple[float, float]]] = {
    5: {2: (2, 1.8), 3: (3, 2.3), 5: (4.8, 2.6), 10: (5, 2.4), 20: (5, 2.3)},
    10: {2: (2, 1.8), 3: (3, 2.8), 5: (5, 3.6), 10: (10, 3.5), 20: (10, 3.7)},
}
"""Mean ranks of an independent implementation by n and d, Frobenius and nuclear, at T = 5."""

Results = Mapping[str, Mapping[str, Sequence[int | None]]]


def measure(*, n: int, t: int, d: int, seeds: Sequence[int]) -> dict[str, list[int | None]]:
    """Return the ranks of the SVMs of the best tokens of every task; None for a task without a solution."""
    task = draw_tasks(seeds, n=n, t=t, d=d)
    best = task.token_scores.argmax(dim=-1)
    problems = list(zip(task.tokens, task.queries, best, strict=True))
    return {norm: [_rank(attention_svm(x, z, chosen, norm=norm)) for x, z, chosen in problems] for norm in NORMS}


def _rank(solved: MaxMargin) -> int | None:
    return None if solved.W is None else int((torch.linalg.svdvals(solved.W) > NEGLIGIBLE).sum())


def _cell(n: int, t: int, d: int) -> str:
    return f"n = {n}, T = {t}, d = {d}"


def _mean(ranks: Sequence[int | None]) -> str:
    mean = over_runs(ranks)
    return "-" if mean is None else f"{mean.mean:.1f}"


def report(results: Results, request: Request) -> Report:
    """Tabulate the mean ranks by the number of sequences, of tokens, and the width."""
    seeds = request.seed_list(20)
    largest = results[_cell(10, 5, WIDTHS[-1])]
    feasible = sum(rank is not None for result in results.values() for rank in result[Norm.FROBENIUS])
    return Report(
        headline=f"n = 10, d = {WIDTHS[-1]}: rank {_mean(largest[Norm.FROBENIUS])} Frobenius, "
        f"{_mean(largest[Norm.NUCLEAR])} nuclear; {feasible} of {len(results) * len(seeds)} tasks feasible",
        setting=(
            f"{len(seeds)} tasks of each size, drawn from seeds {seeds[0]} to {seeds[-1]}; the SVM of their best "
            "tokens; mean ranks over the feasible tasks. The rank of the Frobenius SVM is at most n and d, as it is a "
            "sum of one matrix of rank one per query. Published with 100 feasible tasks per size (--seeds 100)."
        ),
        sections=[("Mean rank, by the norm that is least", _table(results))],
        remarks=(
            "Mean rank of the SVMs of least Frobenius and least nuclear norm over the feasible tasks; ref.: an "
            "independent implementation.",
        ),
        figures={"picture.svg": lambda: draw(results)},
        facts={
            "seeds": seeds,
            "runs": [{"n": n, "T": t, "d": d, "ranks": results[_cell(n, t, d)]} for n, t in SIZES for d in WIDTHS],
        },
    )


def _table(results: Results) -> Table:
    sizes = [(n, t, d) for n, t in SIZES for d in WIDTHS]
    sized_results = [results[_cell(*size)] for size in sizes]
    counts = [
        (sum(rank is not None for rank in ranks[Norm.FROBENIUS]), len(ranks[Norm.FROBENIUS])) for ranks in sized_results
    ]
    reference = [REFERENCE.get(n, {}).get(d) if t == 5 else None for n, t, d in sizes]
    return [
        Field(title="n", cells=[str(n) for n, _, _ in sizes]),
        Field(title="T", cells=[str(t) for _, t, _ in sizes]),
        Field(title="d", cells=[str(d) for _, _, d in sizes]),
        Field(title="feasible", cells=[f"{feasible} of {tasks}" for feasible, tasks in counts], rank=1),
        *(Field(title=str(norm), cells=[_mean(result[norm]) for result in sized_results]) for norm in NORMS),
        Field(
            title="reference", short="ref.", rank=2,
            cells=["" if pair is None else f"{pair[0]:g}, {pair[1]:g}" for pair in reference],
        ),
    ]  # fmt: skip


def draw(results: Results) -> Figure:
    """Plot the mean ranks by the width of tokens."""
    sizes = SIZES[:4]
    figure, panels = make_panels(len(sizes), title="Mean ranks of attention SVMs, by the width of tokens")
    for axes, (n, t) in zip(panels, sizes, strict=True):
        for colour, norm in enumerate(NORMS):
            ranks = [results[_cell(n, t, d)][norm] for d in WIDTHS]
            plot_mean(axes, WIDTHS, ranks, label=f"least {norm} norm", colour=colour)
        highest = max(n for n, _ in SIZES) + 0.5
        title = f"n = {n} sequences of T = {t} tokens"
        finish_panel(axes, title=title, x="width d of tokens", y="mean rank", y_range=(0.0, highest))
        axes.set_xlim(0, WIDTHS[-1] + 0.5)
    return figure


RANK = svm_experiment(
    "rank",
    measure,
    lambda request: {
        _cell(n, t, d): {"n": n, "t": t, "d": d, "seeds": request.seed_list(20)} for n, t in SIZES for d in WIDTHS
    },
    report,
    title="Ranks of attention SVMs",
    reproduces="the nuclear SVM has a low rank, the Frobenius SVM full rank (Tarzanagh et al. 2023)",
    cost="30 s",
)
