"""A comparison of two audits as one HTML page without scripts: no network and no other file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from clearhead.audit.comparison import EQUAL, RATE, Comparison, Difference, Outcome
from clearhead.audit.samples import ClaimSummary
from clearhead.report.comparison import (
    changed_verdict,
    claim_rows,
    comparison_headline,
    evidence_lines,
    largest_changes,
    location,
)
from clearhead.report.head_map import (
    HEADER_HEIGHT,
    LABEL_WIDTH,
    MAP_WIDTH,
    UNMEASURED,
    WITHOUT_SCALE,
    legend_shades,
    shade,
)
from clearhead.report.html import page_policy, page_style, page_template
from clearhead.report.wording import capitalised, clean, number, short, span
from clearhead.theories.theory import Role, Unit

MOST_ROWS = 400
"""Changes in the page's table; comparison.json has all."""
SIDE_LIMITS, HEIGHT, NUMBERED_FROM = (15, 72), 34.0, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceSquare:
    """One head of a map: its corner, the CSS class of its colour, its text, and its numbers in words."""

    x: float
    y: float
    shade: str
    dim: bool
    text: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceMap:
    """Layers x heads; the largest number has the strongest colour."""

    title: str
    side: float
    layers: tuple[tuple[int, float], ...]
    columns: tuple[tuple[int, float], ...]
    squares: tuple[DifferenceSquare, ...]
    size: tuple[float, float]


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as the text of an HTML file. Every string is escaped, and no script can run."""
    style = page_style()
    changes, rows = largest_changes(comparison), claim_rows(comparison)
    return page_template("comparison.html.j2").render(
        comparison=comparison,
        headline=comparison_headline(comparison),
        evidence=evidence_lines(comparison),
        counts=comparison.counts,
        rows=[row for row in rows if row.changed or row.claim.role is Role.PRIMARY],
        other_rows=[row for row in rows if not row.changed and row.claim.role is not Role.PRIMARY],
        maps=_maps(comparison),
        changes=[_facts(d) for d in changes[:MOST_ROWS]],
        all_changes=len(changes),
        rate=f"{RATE:.0%}",
        shades=legend_shades(),
        numbered_from=NUMBERED_FROM,
        location=location,
        style=Markup(style),
        policy=page_policy(style=style),
    )


def _maps(comparison: Comparison) -> list[DifferenceMap]:
    """Return how many claims changed in each head, and a map for every primary claim that differs in a head."""
    on_heads = [d for d in comparison.differences if d.claim.unit is Unit.HEAD]
    families: dict[ClaimSummary, list[Difference]] = {}
    for d in on_heads:
        if d.claim.role is Role.PRIMARY:
            families.setdefault(d.claim, []).append(d)
    silent = (*EQUAL, Outcome.NOT_MEASURED)
    maps = [_map(claim, f) for claim, f in families.items() if any(d.outcome not in silent for d in f)]
    measured = [d for d in on_heads if not d.claim.shared and d.outcome is not Outcome.NOT_MEASURED]
    return [_counts(measured), *maps] if maps and measured else maps


def _counts(differences: Sequence[Difference]) -> DifferenceMap:
    """Return the map of the number of changed claims of each head."""
    heads: dict[tuple[int, int], list[Difference]] = {}
    for d in differences:
        heads.setdefault((d.layer, d.head), []).append(d)
    changed = {key: sum(d.outcome is Outcome.CHANGED for d in claims) for key, claims in heads.items()}
    most = max(changed.values())
    squares = {}
    for (layer, head), claims in heads.items():
        count, equal = changed[layer, head], all(d.outcome in EQUAL for d in claims)
        words = f"Layer {layer}, head {head}: {count} of {len(claims)} claims changed"
        text, colour = "=" if equal else str(count), shade(count / most) if count else WITHOUT_SCALE
        squares[layer, head] = (colour, not count, text, words)
    return _layout("Claims that changed, of those on the head's own tensors", squares)


def _map(claim: ClaimSummary, family: Sequence[Difference]) -> DifferenceMap:
    largest = max((abs(d.difference) for d in family if d.outcome is Outcome.CHANGED), default=0.0)
    squares = {(d.layer, d.head): _square(d, largest) for d in family}
    title = f"{clean(claim.theory)}: {clean(claim.statistic)}, B minus A"
    return _layout(f"{title} (strongest colour: {number(largest)})" if largest else title, squares)


def _square(d: Difference, largest: float) -> tuple[str, bool, str, str]:
    """Return the colour, whether the text is dim, the text, and the numbers in words. Only changes have a colour."""
    facts, changed = _facts(d), d.outcome is Outcome.CHANGED
    text = "=" if d.outcome in EQUAL else "" if d.outcome is Outcome.NOT_MEASURED else short(d.difference)
    colour = UNMEASURED if d.outcome is Outcome.NOT_MEASURED else WITHOUT_SCALE
    words = (
        f"{facts['location']}: {d.outcome}. A {facts['a']}, B {facts['b']}, B - A {facts['difference']} "
        f"({facts['interval']}), p adjusted {facts['p']}, inputs {facts['inputs']}"
    )
    return shade(d.difference / largest) if changed else colour, not changed, text, capitalised(words)


def _layout(title: str, squares: Mapping[tuple[int, int], tuple[str, bool, str, str]]) -> DifferenceMap:
    """Place the squares of heads, given by layer and head. They shrink with the number of heads."""
    width = max(head for _, head in squares) + 1
    side = float(min(max((MAP_WIDTH - LABEL_WIDTH) // width, SIDE_LIMITS[0]), SIDE_LIMITS[1]))
    rows = {layer: HEADER_HEIGHT + i * HEIGHT for i, layer in enumerate(sorted({layer for layer, _ in squares}))}
    return DifferenceMap(
        title=title,
        side=side,
        layers=tuple((layer, y + HEIGHT / 2 + 4) for layer, y in rows.items()),
        columns=tuple(
            (head, LABEL_WIDTH + (head + 0.5) * side) for head in range(0, width, 1 if side >= NUMBERED_FROM else 8)
        ),
        squares=tuple(
            DifferenceSquare(x=LABEL_WIDTH + head * side, y=rows[layer], shade=colour, dim=dim, text=text, words=words)
            for (layer, head), (colour, dim, text, words) in squares.items()
        ),
        size=(LABEL_WIDTH + width * side, HEADER_HEIGHT + len(rows) * HEIGHT),
    )


def _facts(d: Difference) -> dict[str, str]:
    return {
        "location": location(d),
        "theory": d.claim.theory,
        "statistic": d.claim.statistic,
        "name": d.name,
        "a": number(d.a),
        "b": number(d.b),
        "difference": number(d.difference),
        "interval": span(d.interval),
        "p": number(d.adjusted_p_value),
        "inputs": f"{d.inputs:,}",
        "verdict": changed_verdict(d),
    }
