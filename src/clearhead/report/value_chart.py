"""The chart of a claim: median, controls and prediction on one axis, with positions in percent of the width."""

import math
from dataclasses import dataclass

from clearhead.numerics.moments import Interval
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import deciding_control, in_prose

__all__ = ["ChartRow", "ValueChart", "value_chart"]

AXIS = Interval(3.0, 97.0)
NO_BAR = Interval(math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRow:
    """One row of the chart: its kind and name, its number in words, the position of its mark and its bar."""

    kind: str
    name: str
    text: str
    at: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChart:
    """The prediction, the median over heads and every control, one row each; None where a number is missing.

    A theory that predicts only a direction has no row.
    """

    rows: tuple[ChartRow, ...]
    predicted: float | None
    control: float | None
    deciding: str
    heads: tuple[float, ...]


def value_chart(grid: ClaimGrid) -> ValueChart:
    """Return the chart of a claim: its median with interval, every head's value, the controls and the prediction."""
    summary = grid.summary
    values = [cell.finding.value for cell in grid.cells if math.isfinite(cell.finding.value)]
    lines = [
        ("value", f"median {summary.claim.unit}", summary.median, summary.interval),
        *(("control", name, value, grid.control_range(name)) for name, value in summary.controls.items()),
    ]
    if summary.claim.direction is None:
        lines.insert(0, ("theory", "theory predicts", summary.predicted, NO_BAR))
    points = [p for _, _, at, bar in lines for p in (at, bar.low, bar.high) if math.isfinite(p)]
    low, high = min([*points, *values], default=0.0), max([*points, *values], default=1.0)
    width = (high - low) or 1.0

    def percent(point: float) -> float | None:
        if not math.isfinite(point):
            return None
        return round(AXIS.low + (point - low) / width * (AXIS.high - AXIS.low), 2)

    return ValueChart(
        rows=tuple(
            ChartRow(
                kind=kind,
                name=name,
                text=in_prose(summary.claim, at),
                at=percent(at),
                low=percent(bar.low),
                high=percent(bar.high),
            )
            for kind, name, at, bar in lines
        ),
        predicted=percent(summary.predicted),
        deciding=deciding_control(summary),
        control=percent(summary.controls.get(deciding_control(summary), math.nan)),
        heads=tuple(sorted({round(p, 1) for p in map(percent, values) if p is not None})),
    )
