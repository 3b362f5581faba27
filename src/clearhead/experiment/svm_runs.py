"""What the experiments on attention SVMs share: the SVM beside a trained run, and the head of a page of results."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from clearhead.experiment.experiment import Request, installed_versions, write_text
from clearhead.experiment.result_table import over_runs
from clearhead.numerics.proportion import wilson_interval
from clearhead.report.chart_axis import Number
from clearhead.report.line_chart import Line
from clearhead.theories.max_margin import MaxMargin, Norm, attention_svm
from clearhead.theories.max_margin.descent.optimality import correlation

__all__ = [
    "PICTURE",
    "ROOMS",
    "TABLE",
    "command_of",
    "line_of_shares",
    "line_over_runs",
    "nearness",
    "seeds_of",
    "solve_all",
    "write_page",
]

TABLE, PICTURE = "table.md", "picture.svg"
ROOMS = ("theories/max_margin", "numerics")
"""What every kept measurement hangs on."""


def seeds_of(request: Request, default: int) -> list[int]:
    """The seeds that are asked for, from the first on."""
    return list(range(request.seed, request.seed + (request.seeds or default)))


def command_of(name: str, request: Request) -> str:
    """The command that makes the same numbers."""
    options = {"--seeds": request.seeds, "--seed": request.seed or None}
    return " ".join([f"clearhead reproduce {name}", *(f"{key} {value}" for key, value in options.items() if value)])


def solve_all(
    tokens: Tensor,
    queries: Tensor,
    selected: Tensor,
    norm: Norm,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[MaxMargin]:
    """The SVM of every run, for the tokens that it selects."""
    found = []
    for run in range(len(tokens)):
        found.append(attention_svm(tokens[run], queries[run], selected[run], norm=norm))
        if progress is not None:
            progress(run + 1, len(tokens))
    return found


def nearness(W: Tensor, solutions: Sequence[MaxMargin]) -> list[float | None]:
    """Cosines of every run's W to its SVM; None where there is none, or it is zero."""
    found: list[float | None] = []
    for own, solution in zip(W, solutions, strict=True):
        cosine = float("nan") if solution.W is None else float(correlation(own, solution.W))
        found.append(cosine if torch.isfinite(torch.tensor(cosine)) else None)
    return found


def line_over_runs(
    name: str, x: Sequence[Number], runs: Sequence[Sequence[float | int | None]], *, colour: int
) -> Line:
    """Means over runs at every x, in a band of their intervals."""
    each = [(at, over_runs(values)) for at, values in zip(x, runs, strict=True)]
    known = [(at, one.mean, one.interval) for at, one in each if one is not None]
    ends = [(mean, mean) if interval is None else (interval.low, interval.high) for _, mean, interval in known]
    return Line(
        name=name,
        x=[at for at, _, _ in known],
        y=[mean for _, mean, _ in known],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        colour=colour,
    )


def line_of_shares(name: str, x: Sequence[Number], runs: Sequence[Sequence[bool]], *, colour: int) -> Line:
    """Per cent of the runs at every x, in a band of Wilson's intervals."""
    known = [(at, flags) for at, flags in zip(x, runs, strict=True) if flags]
    bounds = [wilson_interval(sum(flags), len(flags)) for _, flags in known]
    return Line(
        name=name,
        x=[at for at, _ in known],
        y=[100 * sum(flags) / len(flags) for _, flags in known],
        low=[100 * bound.low for bound in bounds],
        high=[100 * bound.high for bound in bounds],
        colour=colour,
    )


def write_page(folder: Path, *, title: str, command: str, setting: str, tables: Sequence[tuple[str, str]]) -> Path:
    """Tables under their headings, and over them what made them and what they are of."""
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions("torch", "numpy", "scipy").items())
    made = f"Made by `{command}` on {datetime.now(UTC).date().isoformat()}; {versions}. {setting}"
    parts = [f"# {title}", made, *(part for heading, table in tables for part in (f"## {heading}", table))]
    write_text(folder / TABLE, "\n\n".join(parts) + "\n")
    return folder / TABLE
