"""Charts of the page: curves over depth, with their numbers in words, and the values of a claim on one axis."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clearhead.audit.record import DepthCurve
from clearhead.numerics.moments import Interval
from clearhead.report.grid import ClaimGrid
from clearhead.report.wording import clean, deciding_control, in_prose, number, short

WIDTH, HEIGHT = 360.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 10.0, 36.0
"""Margins around the lines, for the labels of the axes."""
COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled position on an axis, in pixels."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One line of a chart: its colour's number, SVG paths of the line and of its interval band, its numbers."""

    name: str
    colour: int
    path: str
    band: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthChart:
    """A curve as the page draws it: size and ticks in pixels, and one line per quantity, that of the model first."""

    curve: DepthCurve
    words: str
    lines: tuple[ChartLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    size: tuple[float, float] = (WIDTH, HEIGHT)
    plot: tuple[float, float, float, float] = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    """Left, top, right and bottom of the area of the lines."""


def depth_chart(curve: DepthCurve) -> DepthChart:
    """Return the chart of a curve, with a band for the interval of every line."""
    numbers = [v for line in curve.lines for v in (*line.values, *(e for i in line.intervals for e in (i.low, i.high)))]
    known = [v for v in numbers if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    first, last = min(curve.layers, default=0), max(curve.layers, default=0)

    def x(layer: int) -> float:
        return LEFT + (layer - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    columns = [x(layer) for layer in curve.layers]
    step = max(1, math.ceil(len(curve.layers) / 12))
    return DepthChart(
        curve=curve,
        words=depth_in_words(curve),
        lines=tuple(
            ChartLine(
                name=clean(line.name),
                colour=i % COLOURS,
                path=_path(columns, [y(value) for value in line.values]),
                band=_band(columns, [y(v.low) for v in line.intervals], [y(v.high) for v in line.intervals]),
                texts=tuple(number(value) for value in line.values),
            )
            for i, line in enumerate(curve.lines)
        ),
        x_ticks=tuple(Tick(at=x(layer), text=str(layer)) for layer in curve.layers[::step]),
        y_ticks=tuple(Tick(at=y(value), text=number(value, digits=2)) for value in _round_steps(low, high, limit=5)),
    )


def depth_in_words(curve: DepthCurve) -> str:
    """Return the numbers of every line, as in "Coding rate by layer: this model 31 29; before training 30 30"."""
    lines = (f"{clean(line.name)} {' '.join(short(value) for value in line.values)}" for line in curve.lines)
    return f"{clean(curve.title)}, by layer: {'; '.join(lines)}"


def _round_steps(low: float, high: float, *, limit: int) -> list[float]:
    """Return the multiples of a round step (1, 2 or 5 times a power of ten) within a range, at most `limit` + 1."""
    power = 10.0 ** math.floor(math.log10((high - low) / limit))
    step = next(m * power for m in (1, 2, 5, 10) if (high - low) / (m * power) <= limit)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return an SVG path through the points; it is interrupted where a number is missing."""
    return " ".join(_polyline(part) for part in _finite_parts([*zip(xs, ys, strict=True)]))


def _band(xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    parts = _finite_parts([*zip(xs, low, high, strict=True)])
    outlines = ([(x, a) for x, a, _ in part] + [(x, b) for x, _, b in reversed(part)] for part in parts)
    return " ".join(f"{_polyline(outline)}Z" for outline in outlines)


def _finite_parts(points: Sequence[tuple[float, ...]]) -> Iterator[list[tuple[float, ...]]]:
    part: list[tuple[float, ...]] = []
    for point in points:
        if all(math.isfinite(number) for number in point):
            part.append(point)
        elif part:
            yield part
            part = []
    if part:
        yield part


def _polyline(points: Sequence[tuple[float, ...]]) -> str:
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    # A line of one point has no length; closing it draws the round cap.
    return f"M{steps}" + ("Z" if len(points) == 1 else "")


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
