"""What experiments over several seeds share: their seeds, their command, lines over runs, and a page of results."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from clearhead.experiments.experiment import Request, installed_versions, write_text
from clearhead.experiments.tables import over_runs
from clearhead.numerics.proportion import wilson_interval
from clearhead.report.chart_axis import Number
from clearhead.report.line_chart import Line

__all__ = ["PICTURE", "TABLE", "command_of", "line_of_shares", "line_over_runs", "seeds_of", "write_page"]

TABLE, PICTURE = "table.md", "picture.svg"


def seeds_of(request: Request, default: int) -> list[int]:
    """The seeds that are asked for, from the first on."""
    return list(range(request.seed, request.seed + (request.seeds or default)))


def command_of(name: str, request: Request) -> str:
    """The command that makes the same numbers."""
    options = {"--seeds": request.seeds, "--seed": request.seed or None}
    return " ".join([f"clearhead reproduce {name}", *(f"{key} {value}" for key, value in options.items() if value)])


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
