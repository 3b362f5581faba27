"""Points, paths and directions in a plane whose two axes have one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.report.chart_axis import Axis, Number
from clearhead.report.line_chart import Frame, Sample
from clearhead.report.svg import Box, circle, group, path

__all__ = ["Dots", "Plane", "Ray", "Route"]

Point = tuple[Number, Number]
ROOM = 1.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of one kind, filled or as rings."""

    points: Sequence[Point]
    colour: int
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path through points."""

    points: Sequence[Point]
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """A direction from the middle as far as the plane is shown."""

    towards: Point
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One chart. (0, 0) is its middle; what is shown reaches over all dots and routes.

    legend: what the shapes stand for, as the chart's maker has it
    """

    title: str
    x_label: str
    y_label: str
    legend: list[Sample]
    dots: Sequence[Dots] = ()
    routes: Sequence[Route] = ()
    rays: Sequence[Ray] = ()

    def draw(self, box: Box, place: int) -> list[str]:
        """Axes, rays, routes, dots."""
        points = [p for dots in self.dots for p in dots.points] + [p for route in self.routes for p in route.points]
        frame = Frame(box=box, across=Axis(low=-1, high=1), up=Axis(low=-1, high=1))
        wide, high = frame.inner.width / frame.inner.height, 1.0
        reach = ROOM * max((max(abs(x) / wide, abs(y) / high) for x, y in points), default=1.0) or 1.0
        frame = Frame(
            box=box, across=Axis(low=-reach * wide, high=reach * wide), up=Axis(low=-reach * high, high=reach * high)
        )
        middle = frame.at(0.0, 0.0)
        parts = []
        for ray in self.rays:
            far = 2 * reach * wide / (sum(c**2 for c in ray.towards) ** 0.5 or 1.0)
            end = frame.at(far * ray.towards[0], far * ray.towards[1])
            parts.append(path([middle, end], kind=f"line s{ray.colour} ray"))
        parts += [
            path([frame.at(*p) for p in route.points], kind=f"line s{route.colour} solid") for route in self.routes
        ]
        for dots in self.dots:
            kind = f"ring o{dots.colour}" if dots.hollow else f"f{dots.colour}"
            parts += [circle(*frame.at(*point), 4.5, kind=kind) for point in dots.points]
        return [
            *frame.axes(title=self.title, x_label=self.x_label, y_label=self.y_label),
            *group(parts, within=frame.inner, name=f"chart{place}"),
        ]
