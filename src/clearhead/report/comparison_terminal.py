"""A comparison of two audits in a terminal of any width."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from clearhead.audit.comparison import RATE, Comparison, Difference
from clearhead.report.columns import Column, first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.comparison import (
    ClaimRow,
    changed_verdict,
    claim_rows,
    compared,
    comparison_headline,
    evidence_lines,
    largest_changes,
    location,
)
from clearhead.report.wording import clean, number, short
from clearhead.theories.theory import Role

__all__ = ["print_comparison"]

SHOWN = 12
"""Number of changes that are printed."""


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what was compared, the answer, what the models differ in, a row for every claim and the first changes."""
    print_paragraph("compared", Text(compared(comparison)), console)
    answer = Text().append(comparison_headline(comparison), style="bold")
    print_paragraph("result", answer.append("".join(f" {line}" for line in evidence_lines(comparison))), console)
    for line in comparison.manifest:
        print_paragraph("differs", Text(clean(line)), console)
    for note in comparison.notes:
        print_paragraph("note", Text(clean(note)), console)
    console.print()
    rows = claim_rows(comparison)
    shown_rows = [row for row in rows if row.changed or row.claim.role is Role.PRIMARY]
    print_columns(first_that_fits(_claim_columns(shown_rows), width=console.width), console)
    if len(shown_rows) < len(rows):
        text = f"{len(rows) - len(shown_rows)} more claims, none of which changed"
        print_paragraph("", Text(text, style="dim"), console, indent=0)
    changes = largest_changes(comparison)
    if changes:
        console.print()
        print_columns(first_that_fits(_change_columns(changes[:SHOWN]), width=console.width), console)
        shown = f"{SHOWN} of {len(changes):,} changes; " if len(changes) > SHOWN else ""
        text = f"{shown}paired t-tests over inputs, false discovery rate {RATE:.0%} over all claims and heads"
        print_paragraph("", Text(text, style="dim"), console, indent=0)


def _claim_columns(rows: Sequence[ClaimRow]) -> list[tuple[Column, ...]]:
    theory = text_column("theory", [row.claim.theory for row in rows], right=False)
    statistic = text_column("statistic", [row.claim.statistic for row in rows], right=False)
    changed = text_column("changed", [f"{row.changed} / {row.measured}" for row in rows])
    identical = text_column("identical", [str(row.identical) for row in rows])
    a = text_column("median A", [short(row.a) for row in rows])
    b = text_column("median B", [short(row.b) for row in rows])
    return [
        (theory, statistic, changed, identical, a, b),
        (theory, statistic, changed, identical),
        (theory, statistic, changed),
        (statistic, changed),
    ]


def _change_columns(changes: Sequence[Difference]) -> list[tuple[Column, ...]]:
    where = text_column("first changes", [location(d) for d in changes], right=False)
    statistic = text_column("statistic", [d.claim.statistic for d in changes], right=False)
    a = text_column("A", [number(d.a) for d in changes])
    b = text_column("B", [number(d.b) for d in changes])
    difference = text_column("B - A", [number(d.difference) for d in changes])
    span = text_column("95% interval", [f"{number(d.interval.low)} to {number(d.interval.high)}" for d in changes])
    p = text_column("p adjusted", [short(d.adjusted_p_value) for d in changes])
    verdict = text_column("verdict A -> B", [changed_verdict(d) for d in changes], right=False)
    widest = [(where, statistic, a, b, difference, span, p, verdict)] if any(map(changed_verdict, changes)) else []
    return [
        *widest,
        (where, statistic, a, b, difference, span, p),
        (where, statistic, difference, span, p),
        (where, statistic, difference),
        (where, difference),
    ]
