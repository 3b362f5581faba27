"""A comparison of two audits in words: in a terminal of any width, as JSON values, in a notebook, and for the page."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from clearhead.audit.comparison import RATE, Comparison, Difference, Outcome
from clearhead.audit.samples import ClaimSummary
from clearhead.rendering import renders
from clearhead.report.columns import Column, first_that_fits, print_columns, print_paragraph, text_column
from clearhead.report.json_file import plain
from clearhead.report.wording import clean, number, short
from clearhead.theories.theory import Role, Unit

COMPARISON_FORMAT = "clearhead-comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One claim over all heads: how many were measured, changed and identical, medians of both, the largest change."""

    claim: ClaimSummary
    measured: int
    changed: int
    identical: int
    a: float
    b: float
    largest: Difference | None


def claim_rows(comparison: Comparison) -> list[ClaimRow]:
    """Return a row for every claim that was measured, in the order of the audits."""
    families: dict[ClaimSummary, list[Difference]] = {}
    for difference in comparison.differences:
        if difference.outcome is not Outcome.NOT_MEASURED:
            families.setdefault(difference.claim, []).append(difference)
    return [_row(claim, family) for claim, family in families.items()]


def _row(claim: ClaimSummary, family: Sequence[Difference]) -> ClaimRow:
    changed = [d for d in family if d.outcome is Outcome.CHANGED]
    return ClaimRow(
        claim=claim,
        measured=len(family),
        changed=len(changed),
        identical=sum(d.outcome is Outcome.IDENTICAL for d in family),
        a=statistics.median(d.a for d in family),
        b=statistics.median(d.b for d in family),
        largest=max(changed, key=lambda d: abs(d.difference), default=None),
    )


def largest_changes(comparison: Comparison) -> list[Difference]:
    """Return the significant differences by layer, those on a head's own tensors first, then by claim and size."""
    order = {claim: number for number, claim in enumerate(dict.fromkeys(d.claim for d in comparison.differences))}
    return sorted(comparison.changed, key=lambda d: (d.layer, d.claim.shared, order[d.claim], -abs(d.difference)))


def compared(comparison: Comparison) -> str:
    """Return what was compared, in one sentence."""
    return (
        f"A is {clean(comparison.a)}, B is {clean(comparison.b)}; {comparison.inputs:,} inputs of "
        f"{clean(comparison.data)}, paired; differences are B minus A"
    )


def comparison_headline(comparison: Comparison) -> str:
    """Return the answer in one sentence, as in "1 of 72 heads differs"."""
    heads = comparison.heads
    count = sum(outcome is Outcome.CHANGED for outcome in heads.values())
    if count:
        return f"{count} of {_count(len(heads), 'head')} {'differs' if count == 1 else 'differ'}."
    if all(outcome is Outcome.IDENTICAL for outcome in heads.values()):
        return f"No head differs: all values of {_count(len(heads), 'head')} are identical to the last bit."
    return f"No head of {len(heads)} differs."


def evidence_lines(comparison: Comparison) -> list[str]:
    """Return sentences on where the differences begin, which layers are equal, and which heads were not flagged."""
    lines = [_origin(comparison)] if comparison.origin is not None else []
    streams = sum(
        outcome is Outcome.CHANGED and comparison.heads.get(head) is not Outcome.CHANGED
        for head, outcome in comparison.streams.items()
    )
    if streams:
        heads = "head differs" if streams == 1 else "heads differ"
        lines.append(f"{streams} more {heads} in claims on the residual stream only, which heads of a layer share.")
    by_layer: dict[int, set[Outcome]] = {}
    for difference in comparison.differences:
        by_layer.setdefault(difference.layer, set()).add(difference.outcome)
    same = {Outcome.IDENTICAL, Outcome.NOT_MEASURED}
    identical = sorted(layer for layer, outcomes in by_layer.items() if outcomes <= same)
    if identical and comparison.origin is not None:
        lines.append(f"{_layers(identical)} identical to the last bit.")
    counts = comparison.counts
    for outcomes, words in (
        ((Outcome.ROUNDING,), "by rounding only"),
        ((Outcome.NO_EVIDENCE, Outcome.UNDECIDED), "by less than these inputs can show"),
    ):
        count = sum(counts.get(outcome, 0) for outcome in outcomes)
        if count:
            lines.append(f"{_count(count, 'head')} {'differs' if count == 1 else 'differ'} {words}.")
    return [*lines, *_verdict_lines(comparison)]


def _verdict_lines(comparison: Comparison) -> list[str]:
    """Return a sentence on the verdicts of primary claims that differ, if there are any."""
    primary = [d for d in comparison.differences if d.claim.role is Role.PRIMARY and d.verdict_differs]
    if not primary:
        return []
    counts = Counter((d.claim.theory, changed_verdict(d)) for d in primary)
    listed = "; ".join(f"{clean(theory)}: {change} in {count}" for (theory, change), count in counts.items())
    return [f"The verdict of a primary claim differs in {_count(len(primary), 'case')} ({listed})."]


def changed_verdict(difference: Difference) -> str:
    """Return both verdicts, as in "no evidence -> supported"; "" if they are the same or a head was not judged."""
    if difference.verdicts is None or not difference.verdict_differs:
        return ""
    return " -> ".join(difference.verdicts)


def _origin(comparison: Comparison) -> str:
    """Return in which layer and heads the differences begin."""
    origin = comparison.origin
    assert origin is not None
    start = f"The differences begin in layer {origin.layer}"
    text = f"{start}, {_heads(origin.heads)}" if origin.heads else f"{start}, in the residual stream behind its heads"
    later = sum(layer > origin.layer and outcome is Outcome.CHANGED for (layer, _), outcome in comparison.heads.items())
    if later:
        verb = "differs" if later == 1 else "differ"
        text += f"; later layers get other inputs, and {_count(later, 'head')} there {verb}"
    return f"{text}."


def location(difference: Difference) -> str:
    """Return where a difference is, as in "layer 3, head 5"."""
    return f"layer {difference.layer}" + (f", head {difference.head}" if difference.claim.unit is Unit.HEAD else "")


@renders(Comparison, "text")
def comparison_text(comparison: Comparison) -> str:
    """Return what was compared, the answer, and a line for every primary claim that changed."""
    return "\n".join([compared(comparison), *_sentences(comparison), *(f"- {line}" for line in _claims(comparison))])


@renders(Comparison, "html")
def comparison_fragment(comparison: Comparison) -> str:
    """Return the same as an HTML fragment without scripts or styles; every string is escaped."""
    answer, *rest = _sentences(comparison)
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in _claims(comparison))
    return str(
        Markup("<div><p>{}</p><p><b>{}</b> {}</p><ul>{}</ul></div>").format(
            compared(comparison), answer, " ".join(rest), items
        )
    )


def _sentences(comparison: Comparison) -> list[str]:
    notes = [f"differs: {clean(line)}" for line in comparison.manifest]
    return [
        comparison_headline(comparison),
        *evidence_lines(comparison),
        *notes,
        *(f"note: {clean(note)}" for note in comparison.notes),
    ]


def _claims(comparison: Comparison) -> list[str]:
    lines = []
    for row in claim_rows(comparison):
        if row.claim.role is Role.PRIMARY:
            text = f"{row.claim.theory}, {row.claim.statistic}: changed in {row.changed} of {row.measured}"
            if row.largest is not None:
                at, d = location(row.largest), row.largest
                text += f", most at {at}: {number(d.a)} and {number(d.b)}"
            lines.append(clean(text))
    return lines


@renders(Comparison, "values")
def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as values that any JSON reader accepts, at full precision; NaN becomes null."""
    values = {field.name: getattr(comparison, field.name) for field in dataclasses.fields(comparison)}
    differences = values.pop("differences")
    return {
        "format": COMPARISON_FORMAT,
        **plain(values),
        "false_discovery_rate": RATE,
        "headline": comparison_headline(comparison),
        "evidence": evidence_lines(comparison),
        "heads": plain({str(outcome): count for outcome, count in comparison.counts.items()}),
        "differences": [_difference(difference) for difference in differences],
    }


def _difference(difference: Difference) -> dict[str, Any]:
    values: dict[str, Any] = plain(difference)
    claim, interval = values.pop("claim"), values.pop("interval")
    first, second = values.pop("verdicts") or (None, None)
    return {
        "theory": claim["theory"],
        "statistic": claim["statistic"],
        "role": claim["role"],
        "unit": claim["unit"],
        **values,
        "low": interval["low"],
        "high": interval["high"],
        "verdict_a": first,
        "verdict_b": second,
    }


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _heads(heads: Sequence[int]) -> str:
    return ("head " if len(heads) == 1 else "heads ") + _numbers(heads)


def _numbers(numbers: Sequence[int]) -> str:
    """Write numbers in ascending order, as in "3", "0, 2" or "0 to 11"."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers)


def _layers(layers: Sequence[int]) -> str:
    return f"Layer {layers[0]} is" if len(layers) == 1 else f"Layers {_numbers(layers)} are"


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
