"""One table for the terminal and for a page: its columns, and in which order a narrow terminal loses them."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.experiments.estimates import Estimate, estimate
from clearhead.experiments.markdown import markdown_table
from clearhead.numerics.proportion import wilson_interval
from clearhead.report.columns import Column, text_column

__all__ = ["Field", "as_columns", "as_markdown", "counted", "decimals", "mean_of", "over_runs", "plus_minus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column: its title on a page and, shorter, in the terminal.

    rank: 0 is always printed; of the others, the highest go first where there is no room
    narrow: what the cells say where the terminal has less room, if they can say it shorter
    """

    title: str
    cells: Sequence[str]
    short: str = ""
    rank: int = 0
    narrow: Sequence[str] = ()
    words: bool = False


def as_columns(fields: Sequence[Field]) -> tuple[Sequence[Column], ...]:
    """Sets of columns for the terminal, in the order in which they are tried.

    Cells of ranked columns become shorter first, then columns go, then those that are always printed become shorter.
    """
    ranks = range(max(field.rank for field in fields) + 1)
    shown = {most: [field for field in fields if field.rank <= most] for most in reversed(ranks)}
    return (
        _columns(fields, shortened=frozenset()),
        *(_columns(kept, shortened=frozenset(ranks[1:])) for most, kept in shown.items() if most > 0),
        *(_columns(kept, shortened=frozenset(ranks)) for kept in shown.values()),
    )


def _columns(fields: Sequence[Field], *, shortened: frozenset[int]) -> list[Column]:
    return [
        text_column(f.short or f.title, f.narrow if f.rank in shortened and f.narrow else f.cells, right=not f.words)
        for f in fields
    ]


def as_markdown(fields: Sequence[Field]) -> str:
    """The whole table."""
    rows = list(zip(*(field.cells for field in fields), strict=True))
    return markdown_table([field.title for field in fields], rows)


def over_runs(values: Sequence[float | int | None]) -> Estimate | None:
    """The mean over the runs that have a value."""
    return estimate([float(value) for value in values if value is not None])


def decimals(value: float | None, digits: int = 3) -> str:
    """With so many digits after the point and none before it, as in .993; "-" where there is none."""
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.endswith(f"1.{'0' * digits}") else text


def mean_of(found: Estimate | None) -> str:
    """The mean alone."""
    return decimals(None if found is None else found.mean)


def plus_minus(found: Estimate | None) -> str:
    """The mean with half the width of its interval."""
    if found is None or found.interval is None:
        return mean_of(found)
    return f"{decimals(found.mean)} ± {decimals((found.interval.high - found.interval.low) / 2)}"


def counted(flags: Sequence[bool]) -> str:
    """How many per cent, with Wilson's interval, as in "75 [53, 89]"; "-" of none."""
    if not flags:
        return "-"
    bounds = wilson_interval(sum(flags), len(flags))
    return f"{100 * sum(flags) / len(flags):.0f} [{100 * bounds.low:.0f}, {100 * bounds.high:.0f}]"
