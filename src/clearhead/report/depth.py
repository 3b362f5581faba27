"""Curves over depth: a picture of each for the page, and its numbers for those who cannot see it."""

import base64
from dataclasses import dataclass

from clearhead.audit.record import DepthCurve, DepthLine
from clearhead.report.chart_axis import axis_over
from clearhead.report.line_chart import Line, Panel, picture
from clearhead.report.wording import clean, number, short

__all__ = ["DepthFigure", "depth_figure", "depth_in_words"]

WIDTH = 360.0
"""Of a chart: on a telephone it is drawn a little smaller, and its words can still be read."""
COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthFigure:
    """A curve as the page shows it: `source` is the whole picture, `rows` the number of every line at every layer."""

    curve: DepthCurve
    source: str
    words: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def depth_figure(curve: DepthCurve) -> DepthFigure:
    """Draw a curve, with a band for the interval of every line."""
    panel = Panel(
        title=curve.title,
        x_label="layer",
        y_label=curve.quantity,
        lines=[_line(line, curve, place) for place, line in enumerate(curve.lines)],
        x_axis=axis_over(curve.layers, whole=True),
    )
    words = depth_in_words(curve)
    drawing = picture([panel], title=words, columns=1, panel_width=WIDTH)
    # As an image the picture keeps its style to itself, and the page's policy admits no address but such data.
    return DepthFigure(
        curve=curve,
        source="data:image/svg+xml;base64," + base64.b64encode(drawing.encode("utf-8")).decode("ascii"),
        words=words,
        rows=tuple((clean(line.name), tuple(number(value) for value in line.values)) for line in curve.lines),
    )


def depth_in_words(curve: DepthCurve) -> str:
    """The numbers of every line, as in "Coding rate by layer: this model 31 29; before training 30 30"."""
    lines = (f"{clean(line.name)} {' '.join(short(value) for value in line.values)}" for line in curve.lines)
    return f"{clean(curve.title)}, by layer: {'; '.join(lines)}"


def _line(line: DepthLine, curve: DepthCurve, place: int) -> Line:
    return Line(
        name=line.name,
        x=curve.layers,
        y=line.values,
        colour=place % COLOURS,
        low=[interval.low for interval in line.intervals],
        high=[interval.high for interval in line.intervals],
    )
