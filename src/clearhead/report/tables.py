"""Tables of results, for a terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.numerics.moments import wilson_interval
from clearhead.report.columns import Column, text_column


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


def percentage(flags: Sequence[bool]) -> str:
    """Format the percentage of true flags with its Wilson interval, as in "75 [53, 89]"; "-" without flags."""
    if not flags:
        return "-"
    bounds = wilson_interval(sum(flags), len(flags))
    return f"{100 * sum(flags) / len(flags):.0f} [{100 * bounds.low:.0f}, {100 * bounds.high:.0f}]"
