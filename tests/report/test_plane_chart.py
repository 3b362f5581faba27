"""Planes: one scale for both axes, and everything in its place."""

from xml.etree import ElementTree

import pytest

from clearhead.report.line_chart import Sample, picture
from clearhead.report.plane_chart import Dots, Plane, Ray, Route

SVG = "{http://www.w3.org/2000/svg}"


def _drawn(**parts: object) -> ElementTree.Element:
    plane = Plane(**{"title": "t", "x_label": "x", "y_label": "y", "legend": [Sample("one", 0, "ring")], **parts})
    root = ElementTree.fromstring(picture([plane], title="x"))
    return next(root.iter(f"{SVG}g"))


def _circles(inner: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in inner.iter(f"{SVG}circle")]


def test_both_axes_have_one_scale() -> None:
    inner = _drawn(dots=[Dots(points=[(0, 0), (1, 0), (0, 1), (3, 0)], colour=0)])
    middle, right, above, far = _circles(inner)
    assert right[0] - middle[0] == pytest.approx(middle[1] - above[1], abs=0.2)
    assert far[0] - middle[0] == pytest.approx(3 * (right[0] - middle[0]), abs=0.3)
    assert right[1] == middle[1]


def test_rays_pass_the_border_and_routes_stay_within() -> None:
    route = [(0.0, 0.0), (1.0, 2.0), (2.0, -2.0)]
    inner = _drawn(routes=[Route(points=route, colour=1)], rays=[Ray(towards=(0.0, 1e-3), colour=0)])
    ray, way = (
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in inner.iter(f"{SVG}polyline")
    )
    assert ray[0] == way[0]
    assert ray[1][0] == ray[0][0]
    assert ray[1][1] < min(y for _, y in way) - 1
    assert len(way) == 3
    assert way[1][1] < way[0][1] < way[2][1]


def test_hollow_dots_are_rings_and_nothing_is_no_error() -> None:
    inner = _drawn(dots=[Dots(points=[(1, 1)], colour=2, hollow=True), Dots(points=[(2, 1)], colour=3)])
    kinds = [c.attrib["class"] for c in inner.iter(f"{SVG}circle")]
    assert kinds == ["ring o2", "f3"]
    assert not list(_drawn())
    assert not list(_drawn(dots=[Dots(points=[(0, 0)], colour=0)]).iter(f"{SVG}line"))
