"""Charts: that points stand where their numbers say, ticks are round, and words from outside stay words."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.report.chart_axis import Axis, axis_over
from clearhead.report.line_chart import Line, Panel, picture

SVG = "{http://www.w3.org/2000/svg}"
FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def _panel(*lines: Line, **changes: object) -> Panel:
    return Panel(**{"title": "Title", "x_label": "steps", "y_label": "cosine", "lines": lines, **changes})


def _points(element: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in element.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


@given(FINITE, st.floats(1e-6, 1e6))
def test_ticks_are_round_and_within(low: float, width: float) -> None:
    axis = Axis(low=low, high=low + max(width, 1e-6 * abs(low)))
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    slack = 1e-9 * (axis.high - axis.low) + 1e-12 + 1e-15 * abs(low)
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in ticks)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert max(steps) - min(steps) <= 1e-9 * max(1.0, abs(low))
    words = [words for _, words in axis.labels()]
    assert len(set(words)) == len(words)


@given(st.floats(1e-9, 1e9), st.floats(1.5, 1e9))
def test_logarithmic_ticks_are_within(low: float, factor: float) -> None:
    axis = Axis(low=low, high=low * factor, logarithmic=True)
    ticks = axis.ticks()
    assert len(ticks) <= 7
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in ticks)
    assert ticks or factor < 3
    assert all(re.fullmatch(r"[125]0*", f"{tick:.0f}") for tick in ticks if tick >= 1)
    assert axis.share(low) == pytest.approx(0, abs=1e-9)
    assert axis.share(low * math.sqrt(factor)) == pytest.approx(0.5, abs=1e-6)


def test_labels_have_as_many_decimals_as_they_need() -> None:
    assert [words for _, words in Axis(low=0, high=1).labels()] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [words for _, words in Axis(low=0, high=2000).labels()] == ["0", "500", "1,000", "1,500", "2,000"]
    assert [words for _, words in Axis(low=10, high=1e6, logarithmic=True).labels()][-1] == "1e6"
    assert axis_over([3.0, math.nan, math.inf, 3.0]).low < 3 < axis_over([3.0]).high
    assert axis_over([0.0, -1.0], logarithmic=True).low > 0


def test_points_stand_where_their_numbers_say() -> None:
    line = Line(name="a", x=[0, 1, 2], y=[0, 1, 0.5], colour=2, low=[-1, 0, 0], high=[1, 2, 1])
    root = ElementTree.fromstring(
        picture([_panel(line, x_axis=Axis(low=0, high=2), y_axis=Axis(low=-1, high=2))], title="x")
    )
    drawn = [p for p in root.iter(f"{SVG}polyline") if len(_points(p)) == 3]
    (left, low), (middle, high), (right, between) = _points(drawn[0])
    assert middle == pytest.approx((left + right) / 2, abs=0.11)
    assert between == pytest.approx((low + high) / 2, abs=0.11)
    assert high < low
    [band] = root.iter(f"{SVG}polygon")
    assert len(_points(band)) == 6
    assert _points(band)[1][1] == pytest.approx(low, abs=0.11)
    frame = next(root.iter(f"{SVG}clipPath"))[0]
    box = {key: float(frame.attrib[key]) for key in ("x", "y", "width", "height")}
    assert (left, right) == pytest.approx((box["x"], box["x"] + box["width"]), abs=0.11)


def test_gaps_are_not_bridged() -> None:
    line = Line(name="a", x=[0, 1, 2, 3, 4], y=[1, 2, math.nan, 2, math.nan], colour=0)
    root = ElementTree.fromstring(picture([_panel(line)], title="x"))
    inner = next(g for g in root.iter(f"{SVG}g"))
    assert [len(_points(p)) for p in inner.iter(f"{SVG}polyline")] == [2]
    assert len(list(inner.iter(f"{SVG}circle"))) == 1


def test_words_from_outside_are_escaped() -> None:
    evil = '<script>alert("x")</script>&\x1b[0m'
    made = picture([_panel(Line(name=evil, x=[1, 2], y=[1, 2], colour=0), title=evil, x_label=evil)], title=evil)
    root = ElementTree.fromstring(made)
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in made
    assert [e.text for e in root.iter(f"{SVG}text")].count(evil.replace("\x1b", "?")) == 3


def test_the_legend_names_each_line_once_and_stays_within() -> None:
    names = [f"a rather long name of line number {i}" for i in range(6)]
    panels = [_panel(*(Line(name=n, x=[1, 2], y=[1, 2], colour=i) for i, n in enumerate(names))) for _ in range(3)]
    made = picture(panels, title="x")
    root = ElementTree.fromstring(made)
    entries = [e for e in root.iter(f"{SVG}text") if e.text in names]
    assert sorted(e.text or "" for e in entries) == sorted(names)
    width = float(root.attrib["width"])
    assert all(float(e.attrib["x"]) + 6 * len(e.text or "") < width for e in entries)
    assert len({e.attrib["y"] for e in entries}) > 1
    ids = [e.attrib["id"] for e in root.iter(f"{SVG}clipPath")]
    assert len(set(ids)) == len(ids) == 3
    assert "prefers-color-scheme:dark" in made
    assert "http" not in made.replace("http://www.w3.org/2000/svg", "")
