"""A value, its controls and the theory on one axis: where each mark stands, in percent of the width."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from clearhead.audit.findings import Chance
from clearhead.numerics.moments import Interval
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import hardest, number

__all__ = ["Picture", "Track", "picture_of_summary"]

AXIS = Interval(3.0, 97.0)
NOWHERE = Interval(math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One line of the picture: its name, its number as people read it, its mark and the ends of its bar."""

    kind: str
    name: str
    text: str
    at: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The theory, the median over heads and every control, a line each; None where a number is missing.

    A theory that tells a direction only has no line.
    """

    tracks: tuple[Track, ...]
    exact: float | None
    chance: float | None
    heads: tuple[float, ...]


def picture_of_summary(grid: ClaimGrid) -> Picture:
    """Place the median over heads and its interval, every head's own value, the controls' medians, and the theory."""
    summary = grid.summary
    measured = [cell.finding for cell in grid.cells if math.isfinite(cell.finding.value)]
    drawn = {
        name: [chance for finding in measured for chance in finding.controls if chance.control == name]
        for name in summary.controls
    }
    told = [("theory", "theory", summary.exact, NOWHERE)] if summary.claim.direction is None else []
    lines = [
        *told,
        ("value", f"median {summary.claim.unit}", summary.median, summary.interval),
        *(("control", name, summary.controls[name], _ends(chances)) for name, chances in drawn.items()),
    ]
    values = [finding.value for finding in measured]
    points = [p for _, _, at, bar in lines for p in (at, bar.low, bar.high) if math.isfinite(p)]
    low, high = min([*points, *values], default=0.0), max([*points, *values], default=1.0)
    width = (high - low) or 1.0

    def place(point: float) -> float | None:
        if not math.isfinite(point):
            return None
        return round(AXIS.low + (point - low) / width * (AXIS.high - AXIS.low), 2)

    return Picture(
        tracks=tuple(
            Track(kind=kind, name=name, text=number(at), at=place(at), low=place(bar.low), high=place(bar.high))
            for kind, name, at, bar in lines
        ),
        exact=place(summary.exact),
        chance=place(summary.controls.get(hardest(summary), math.nan)),
        heads=tuple(sorted({round(p, 1) for p in map(place, values) if p is not None})),
    )


def _ends(chances: Iterable[Chance]) -> Interval:
    """The median head's range of a control."""
    known = [c.range for c in chances if math.isfinite(c.range.low) and math.isfinite(c.range.high)]
    if not known:
        return NOWHERE
    return Interval(statistics.median(r.low for r in known), statistics.median(r.high for r in known))
