"""Where things stand in the report's pictures: the map of heads, and a value against chance and theory."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from clearhead.findings import Finding, Summary, Verdict
from clearhead.numerics.moments import Interval
from clearhead.report.colours import DARK, LIGHT
from clearhead.report.grid import Cell, ClaimGrid, Row
from clearhead.report.wording import agreement

__all__ = [
    "HeatMap",
    "Picture",
    "Square",
    "colour_bar",
    "map_of_heads",
    "picture_of",
    "picture_of_summary",
    "shade_of",
    "styles_for_dark_pages",
]

MAP_WIDTH = 1040
LABEL_WIDTH = 44
HEADER_HEIGHT = 22
AXIS = Interval(62.0, 360.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One head of the map: its corner, its colours, and what it says."""

    cell: Cell
    x: float
    y: float
    fill: str
    ink: str
    text: str
    shade: str

    @property
    def agreement(self) -> str:
        """The agreement as a number for programs; empty where there is none."""
        return repr(self.cell.finding.agreement) if self.shade else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Layers x heads: sizes in pixels, and the squares row by row."""

    grid: ClaimGrid
    side: float
    height: float
    rows: tuple[tuple[Row, tuple[Square, ...]], ...]

    @property
    def columns(self) -> list[tuple[int, float]]:
        """Each head's number and the middle of its column; every eighth where the columns are too narrow for all."""
        step = 1 if self.side >= 24 else 8
        return [(head, LABEL_WIDTH + (head + 0.5) * self.side) for head in range(0, self.grid.width, step)]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole picture."""
        return LABEL_WIDTH + self.grid.width * self.side, HEADER_HEIGHT + len(self.rows) * self.height


def map_of_heads(grid: ClaimGrid) -> HeatMap:
    """Place every head; squares shrink as heads and layers become many, and lose their numbers below 30 pixels."""
    side = float(min(max((MAP_WIDTH - LABEL_WIDTH) // max(grid.width, 1), 15), 72))
    height = 34.0 if len(grid.rows) <= 24 else 22.0
    rows = tuple(
        (row, tuple(_square(cell, side=side, y=HEADER_HEIGHT + i * height) for cell in row.cells))
        for i, row in enumerate(grid.rows)
    )
    return HeatMap(grid=grid, side=side, height=height, rows=rows)


def _square(cell: Cell, *, side: float, y: float) -> Square:
    finding = cell.finding
    measured = finding.verdict is not Verdict.NOT_APPLICABLE and math.isfinite(finding.agreement)
    return Square(
        cell=cell,
        x=LABEL_WIDTH + finding.head * side,
        y=y,
        fill=LIGHT.fill(finding.agreement) if measured else "url(#hatch)",
        ink=LIGHT.ink(finding.agreement) if measured else "",
        text=agreement(finding.agreement) if measured and side >= 30 else "",
        shade=shade_of(finding.agreement) if measured else "",
    )


def shade_of(value: float) -> str:
    """Name of the class that colours an agreement on a dark page."""
    return f"a{round(min(max(value, -1.0), 1.0) * 100):d}"


def colour_bar() -> list[tuple[float, str, str]]:
    """Steps of the legend from -1 to 1: the agreement, its colour on a light page, its class on a dark one."""
    return [(step / 20, LIGHT.fill(step / 20), shade_of(step / 20)) for step in range(-20, 21)]


def styles_for_dark_pages(maps: Iterable[HeatMap]) -> str:
    """Style rules for every shade in the maps and the legend, to stand inside a media query for dark pages."""
    shades = {square.shade for heat in maps for _, squares in heat.rows for square in squares if square.shade}
    shades |= {shade for _, _, shade in colour_bar()}
    values = {shade: int(shade.removeprefix("a")) / 100 for shade in sorted(shades)}
    return "".join(f".{s}{{fill:{DARK.fill(v)}}}.{s} :is(text,.mark){{fill:{DARK.ink(v)}}}" for s, v in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A value, chance and theory on one axis, in pixels; None where a number is missing."""

    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    chance_low: float | None
    chance_high: float | None
    exact: float | None
    others: tuple[float, ...] = ()


def picture_of(finding: Finding) -> Picture:
    """Place one head's value and interval on an axis that holds them, the chance range and the exact value."""
    return _picture(
        finding.value, finding.interval, finding.chance.value, finding.chance.range, finding.claim.exact, others=()
    )


def picture_of_summary(grid: ClaimGrid) -> Picture:
    """Place the median over heads and its interval, with a mark for every head's own value."""
    summary: Summary = grid.summary
    others = tuple(cell.finding.value for cell in grid.cells if math.isfinite(cell.finding.value))
    return _picture(
        summary.median, summary.interval, summary.chance, summary.chance_range, summary.claim.exact, others=others
    )


def _picture(
    value: float, interval: Interval, chance: float, chance_range: Interval, exact: float, *, others: tuple[float, ...]
) -> Picture:
    ends = [interval.low, interval.high, chance_range.low, chance_range.high]
    points = [p for p in (value, chance, exact, *ends, *others) if math.isfinite(p)]
    low, high = (min(points), max(points)) if points else (0.0, 1.0)
    width = (high - low) or 1.0

    def place(point: float) -> float | None:
        if not math.isfinite(point):
            return None
        return round(AXIS.low + (point - low) / width * (AXIS.high - AXIS.low), 1)

    places = sorted({round(p) for p in map(place, others) if p is not None})
    return Picture(
        value=place(value),
        low=place(min(interval.low, interval.high)),
        high=place(max(interval.low, interval.high)),
        chance=place(chance),
        chance_low=place(chance_range.low),
        chance_high=place(chance_range.high),
        exact=place(exact),
        others=tuple(float(p) for p in places),
    )
