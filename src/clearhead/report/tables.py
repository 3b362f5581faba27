"""Tables of results, for a terminal and as Markdown, and the format of their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.numerics.moments import Interval, RunningMoments, wilson_interval
from clearhead.report.columns import Column, text_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean over `count` seeds with its 95 % Student interval, which is None for fewer than two seeds."""

    mean: float
    interval: Interval | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column of a table.

    short: a shorter title for the terminal
    rank: 0 is always printed; in a narrow terminal the columns of the highest rank are dropped first
    narrow: shorter cells for a narrow terminal
    text: align to the left, as words rather than numbers
    """

    title: str
    cells: Sequence[str]
    short: str = ""
    rank: int = 0
    narrow: Sequence[str] = ()
    text: bool = False


Table = Sequence[Field]


def as_columns(table: Table) -> tuple[Sequence[Column], ...]:
    """Return column sets for the terminal, widest first.

    Ranked columns are shortened first, then dropped; then the columns of rank 0 are shortened.
    """
    ranks = range(max(field.rank for field in table) + 1)
    by_rank = {most: [field for field in table if field.rank <= most] for most in reversed(ranks)}
    return (
        _columns(table, shortened=frozenset()),
        *(_columns(fields, shortened=frozenset(ranks[1:])) for most, fields in by_rank.items() if most > 0),
        *(_columns(fields, shortened=frozenset(ranks)) for fields in by_rank.values()),
    )


def _columns(table: Table, *, shortened: frozenset[int]) -> list[Column]:
    return [
        text_column(f.short or f.title, f.narrow if f.rank in shortened and f.narrow else f.cells, right=not f.text)
        for f in table
    ]


def as_markdown(table: Table) -> str:
    """Return the table in Markdown; a bar inside a cell is escaped."""
    rows = zip(*(field.cells for field in table), strict=True)
    lines = [[field.title for field in table], ["---"] * len(table), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the values with its interval; None without values."""
    if not values:
        return None
    moments = moments_of(values)
    low, high = (float(end[0]) for end in moments.interval())
    return Estimate(
        mean=float(moments.mean[0]), interval=Interval(low, high) if len(values) > 1 else None, count=len(values)
    )


def moments_of(values: Sequence[float]) -> RunningMoments:
    """Return the moments of the values."""
    moments = RunningMoments((1,))
    for value in values:
        moments.add(np.array([value]))
    return moments


def over_runs(values: Sequence[float | int | None]) -> Estimate | None:
    """Return the mean over the runs that have a value, with its interval; None without values."""
    return estimate([float(value) for value in values if value is not None])


def decimals(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` digits after the point and no leading zero, as in .993; "-" for None."""
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.endswith(f"1.{'0' * digits}") else text


def mean_of(value: Estimate | None) -> str:
    """Format the mean of an estimate."""
    return decimals(None if value is None else value.mean)


def plus_minus(value: Estimate | None) -> str:
    """Format the mean of an estimate with half the width of its interval; one of them from 10 on has one decimal."""
    if value is None or value.interval is None:
        return mean_of(value)
    half = (value.interval.high - value.interval.low) / 2
    digits = 3 if max(abs(value.mean), half) < 10 else 1
    return f"{decimals(value.mean, digits)} ± {decimals(half, digits)}"


def significant(value: Estimate | None) -> str:
    """Format the mean of an estimate with three significant digits and half the width of its interval with two."""
    if value is None or value.interval is None:
        return "-" if value is None else f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {(value.interval.high - value.interval.low) / 2:.2g}"


def percentage(flags: Sequence[bool]) -> str:
    """Format the percentage of true flags with its Wilson interval, as in "75 [53, 89]"; "-" without flags."""
    if not flags:
        return "-"
    bounds = wilson_interval(sum(flags), len(flags))
    return f"{100 * sum(flags) / len(flags):.0f} [{100 * bounds.low:.0f}, {100 * bounds.high:.0f}]"
