"""Charts of lines with bands, side by side, as one SVG file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from clearhead.report.chart_axis import Axis, Number, axis_over
from clearhead.report.svg import Box, circle, document, group, path, polygon, segment, text, text_width

__all__ = ["Chart", "Frame", "Line", "Panel", "Sample", "picture"]

PANEL_WIDTH, PANEL_HEIGHT = 430.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 16.0, 34.0, 46.0
MARGIN, LEGEND_LINE, SAMPLE = 16.0, 20.0, 26.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through (x, y), within a band from `low` to `high` where these are given; gaps where y is not finite.

    colour: its place among the colours, from 0 to 5; lines that mean the same have the same in every chart
    points: mark its points rather than draw a line; solid: without the dashes that go with its colour
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    colour: int
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    points: bool = False
    solid: bool = False

    @property
    def sample(self) -> "Sample":
        """Its entry in the legend."""
        return Sample(self.name, self.colour, "dot" if self.points else "solid" if self.solid else "line")


@dataclass(frozen=True, slots=True)
class Sample:
    """An entry of the legend: what a colour and a shape stand for."""

    name: str
    colour: int
    shape: Literal["line", "solid", "ray", "dot", "ring"] = "line"


@runtime_checkable
class Chart(Protocol):
    """Anything that can be drawn into a box, and what its colours mean."""

    def draw(self, box: Box, place: int) -> list[str]:
        """Its parts; `place` is its number in the picture."""

    @property
    def legend(self) -> list[Sample]:
        """What its colours and shapes stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart. Axes reach over the lines unless they are given."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_log: bool = False
    y_log: bool = False
    x_axis: Axis | None = None
    y_axis: Axis | None = None

    @property
    def legend(self) -> list[Sample]:
        """Of every line."""
        return [line.sample for line in self.lines]

    def draw(self, box: Box, place: int) -> list[str]:
        """Axes, bands, lines."""
        across = self.x_axis or axis_over((x for line in self.lines for x in line.x), logarithmic=self.x_log)
        heights = (v for line in self.lines for v in (*line.y, *line.low, *line.high))
        up = self.y_axis or axis_over(heights, logarithmic=self.y_log)
        frame = Frame(box=box, across=across, up=up)
        parts = [part for line in self.lines for part in (*_band(line, frame), *_drawn(line, frame))]
        return [
            *frame.axes(title=self.title, x_label=self.x_label, y_label=self.y_label),
            *group(parts, within=frame.inner, name=f"chart{place}"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The place of a chart's axes in its box."""

    box: Box
    across: Axis
    up: Axis
    inner: Box = field(init=False)

    def __post_init__(self) -> None:
        inner = Box(
            x=self.box.x + LEFT,
            y=self.box.y + TOP,
            width=self.box.width - LEFT - RIGHT,
            height=self.box.height - TOP - BOTTOM,
        )
        object.__setattr__(self, "inner", inner)

    def at(self, x: Number, y: Number) -> tuple[float, float]:
        """Where a point stands in the picture."""
        return (
            self.inner.x + self.across.share(x) * self.inner.width,
            self.inner.bottom - self.up.share(y) * self.inner.height,
        )

    def axes(self, *, title: str, x_label: str, y_label: str) -> list[str]:
        """Rules at the ticks, their numbers, and the words around them."""
        inner = self.inner
        parts = [text(inner.x, self.box.y + 18, title, kind="title")]
        for tick, words in self.up.labels():
            y = self.at(self.across.low, tick)[1]
            parts += [segment(inner.x, y, inner.right, y, kind="rule")]
            parts += [text(inner.x - 6, y + 4, words, kind="small", anchor="end")]
        for tick, words in self.across.labels():
            x = self.at(tick, self.up.low)[0]
            parts += [segment(x, inner.bottom, x, inner.bottom + 4, kind="axis")]
            parts += [text(x, inner.bottom + 17, words, kind="small", anchor="middle")]
        parts += [segment(inner.x, inner.bottom, inner.right, inner.bottom, kind="axis")]
        parts += [text(inner.x + inner.width / 2, inner.bottom + 36, x_label, kind="small", anchor="middle")]
        middle = inner.y + inner.height / 2
        return [*parts, text(self.box.x + 13, middle, y_label, kind="small", anchor="middle", turned=True)]


def picture(charts: Sequence[Chart], *, title: str, columns: int = 2, panel_width: float = PANEL_WIDTH) -> str:
    """The charts in rows of so many, under a legend that names every colour once."""
    columns = min(columns, len(charts))
    width = 2 * MARGIN + columns * panel_width
    legend, head = _legend(charts, width)
    parts = [*legend]
    for place, chart in enumerate(charts):
        row, column = divmod(place, columns)
        corner = (MARGIN + column * panel_width, head + row * PANEL_HEIGHT)
        parts += chart.draw(Box(x=corner[0], y=corner[1], width=panel_width, height=PANEL_HEIGHT), place)
    height = head + math.ceil(len(charts) / columns) * PANEL_HEIGHT + MARGIN / 2
    return document(parts, width=width, height=height, title=title)


def _legend(charts: Sequence[Chart], width: float) -> tuple[list[str], float]:
    """The entries, broken where the picture ends, and the height below them."""
    parts, x, y = [], MARGIN, MARGIN + 8
    for sample in dict.fromkeys(sample for chart in charts for sample in chart.legend):
        needed = SAMPLE + 6 + text_width(sample.name) + 14
        if x > MARGIN and x + needed > width:
            x, y = MARGIN, y + LEGEND_LINE
        parts += [_shape(sample, x, y - 4), text(x + SAMPLE + 6, y, sample.name)]
        x += needed
    return parts, y + LEGEND_LINE


def _shape(sample: Sample, x: float, y: float) -> str:
    if sample.shape in ("dot", "ring"):
        kind = f"f{sample.colour}" if sample.shape == "dot" else f"ring o{sample.colour}"
        return circle(x + SAMPLE / 2, y, 4.0, kind=kind)
    kind = f"line s{sample.colour}" + ("" if sample.shape == "line" else f" {sample.shape}")
    return path([(x, y), (x + SAMPLE, y)], kind=kind)


def _band(line: Line, frame: Frame) -> list[str]:
    if not len(line.low):
        return []
    sides = zip(line.x, line.low, line.high, strict=True)
    known = [(x, low, high) for x, low, high in sides if math.isfinite(low) and math.isfinite(high)]
    around = [frame.at(x, low) for x, low, _ in known] + [frame.at(x, high) for x, _, high in reversed(known)]
    return [polygon(around, kind=f"band f{line.colour}")] if len(known) > 1 else []


def _drawn(line: Line, frame: Frame) -> list[str]:
    """As many pieces as there are stretches of finite values; a single value is a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if math.isfinite(y):
            pieces[-1].append(frame.at(x, y))
        elif pieces[-1]:
            pieces.append([])
    if line.points:
        return [circle(x, y, 3.2, kind=f"f{line.colour}") for piece in pieces for x, y in piece]
    kind = f"line s{line.colour}" + (" solid" if line.solid else "")
    return [
        path(piece, kind=kind) if len(piece) > 1 else circle(*piece[0], 3.0, kind=f"f{line.colour}")
        for piece in pieces
        if piece
    ]
