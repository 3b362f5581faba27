"""Pictures as SVG files that need nothing else: their own style for light and dark pages, and escaped text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from clearhead.report.wording import clean

__all__ = ["Box", "circle", "document", "group", "path", "polygon", "rectangle", "segment", "text", "text_width"]

LIGHT = ("#1f5fa8", "#b85c00", "#1b7f4d", "#7a3fa0", "#5f6672", "#b3261e")
DARK = ("#7fb6f5", "#f0a35a", "#6fcf97", "#c79bea", "#aab2bf", "#f28b82")
DASHES = ("none", "8 3", "2 3", "9 3 2 3", "5 2", "1 2")
"""Lines differ by more than their colour."""
FONT = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of the picture; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


def document(body: Iterable[str], *, width: float, height: float, title: str) -> str:
    """The whole file. `title` is what a screen reader reads of it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" '
        f'height="{_n(height)}" role="img" aria-label="{_escaped(title)}">\n<title>{_escaped(title)}</title>\n'
        f"<style>{_style()}</style>\n"
        f'<rect class="page" width="{_n(width)}" height="{_n(height)}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start", turned: bool = False) -> str:
    """Words that begin, end or are centred at a point; turned ones read upwards."""
    turn = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{named}{turn}>{_escaped(words)}</text>'


def text_width(words: str, *, size: float = FONT) -> float:
    """About how wide words are drawn, rather too wide than too narrow."""
    return 0.58 * size * len(words)


def segment(x: float, y: float, to_x: float, to_y: float, *, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}"/>'


def path(points: Sequence[tuple[float, float]], *, kind: str) -> str:
    """A line through points."""
    return f'<polyline class="{kind}" points="{_points(points)}"/>'


def polygon(points: Sequence[tuple[float, float]], *, kind: str) -> str:
    """An area within points."""
    return f'<polygon class="{kind}" points="{_points(points)}"/>'


def circle(x: float, y: float, radius: float, *, kind: str) -> str:
    """A disc or ring."""
    return f'<circle class="{kind}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>'


def rectangle(box: Box, *, kind: str) -> str:
    """A rectangle."""
    return f'<rect class="{kind}" x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}"/>'


def group(parts: Iterable[str], *, within: Box, name: str) -> list[str]:
    """Parts of which nothing is seen outside of the box; `name` is one's own within the file."""
    clip = rectangle(within, kind="clip")
    return [f'<clipPath id="{name}">{clip}</clipPath>', f'<g clip-path="url(#{name})">', *parts, "</g>"]


def _style() -> str:
    plain = (
        f"text{{font:{_n(FONT)}px system-ui,sans-serif;fill:var(--ink)}}.title{{font-weight:600;font-size:14px}}"
        ".small{font-size:11px;fill:var(--dim)}.page{fill:var(--page)}.axis{stroke:var(--dim);stroke-width:1}"
        ".rule{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke-width:2;stroke-linejoin:round}"
        ".band{stroke:none;opacity:.18}.ring{fill:var(--page);stroke-width:1.6}"
    )
    return (
        f":root{{--ink:#1c1f24;--dim:#5f6672;--rule:#e3e5e9;--page:#ffffff;{_colours(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{--ink:#e9ecf1;--dim:#a4acb9;--rule:#333943;--page:#15181d;"
        f"{_colours(DARK)}}}}}"
        + plain
        + "".join(
            f".s{i}{{stroke:var(--c{i});stroke-dasharray:{dash}}}.f{i}{{fill:var(--c{i})}}.o{i}{{stroke:var(--c{i})}}"
            for i, dash in enumerate(DASHES)
        )
        + ".solid{stroke-dasharray:none}.ray{stroke-width:1.3;stroke-dasharray:3 4}"
    )


def _colours(colours: Sequence[str]) -> str:
    return "".join(f"--c{i}:{colour};" for i, colour in enumerate(colours))


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """Tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _escaped(words: str) -> str:
    return escape(clean(words), quote=True)
