"""The page's map of heads: positions, colours and numbers of its squares, and the colour scale of agreement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.audit.findings import Finding, Verdict
from clearhead.report.grid import Cell, ClaimGrid, Row, leading
from clearhead.report.wording import agreement, short
from clearhead.theories.theory import Claim

RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Colours at agreements -1, -1/2, 0, 1/2 and 1, with linear interpolation between and constant outside.

    Orange is away from the theory, neutral at the control, blue at the theory. Orange and blue can be distinguished
    under every common colour blindness, and lightness alone orders each side. There is one scale for light pages (and
    for terminals, where the colour of the number is set with it) and one for dark pages.
    """

    stops: tuple[RGB, RGB, RGB, RGB, RGB]

    def rgb(self, agreement: float) -> RGB:
        """Return the colour of an agreement, rounded to the two decimals that are printed."""
        scaled = (min(max(round(agreement, 2), -1.0), 1.0) + 1) * 2
        left = min(int(scaled), 3)
        weight = scaled - left
        low, high = self.stops[left], self.stops[left + 1]
        red, green, blue = (round(a + (b - a) * weight) for a, b in zip(low, high, strict=True))
        return red, green, blue

    def fill(self, agreement: float) -> str:
        """Return the colour of an agreement as #rrggbb."""
        return as_hex(self.rgb(agreement))

    def ink(self, agreement: float) -> str:
        """Return black or white, whichever has more contrast with the fill; the contrast is always at least 4.5."""
        fill = luminance(self.rgb(agreement))
        return "#ffffff" if 1.05 / (fill + 0.05) > (fill + 0.05) / 0.05 else "#000000"


def as_hex(colour: RGB) -> str:
    """Return a colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def luminance(colour: RGB) -> float:
    """Return the relative luminance, 0 for black to 1 for white (WCAG 2.2)."""
    red, green, blue = (c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


LIGHT = Scale(stops=((138, 69, 0), (226, 148, 66), (243, 242, 238), (107, 164, 216), (11, 60, 125)))
DARK = Scale(stops=((255, 196, 128), (176, 104, 36), (44, 48, 56), (44, 108, 176), (164, 212, 255)))


MAP_WIDTH = 1000
LABEL_WIDTH = 44
HEADER_HEIGHT = 22
UNMEASURED, WITHOUT_SCALE = "unmeasured", "plain"
VERDICT_SHADES = {Verdict.SUPPORTED: 0.5, Verdict.PARTLY_SUPPORTED: 0.5, Verdict.CONTRADICTED: -0.5}
"""For claims that predict only a direction: the agreement whose colour stands for a verdict. Others are grey."""
PALEST = 0.2
"""Least agreement, in size, whose colour can be seen next to grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One head of the map: its corner, the CSS class of its colour, and its number."""

    cell: Cell
    index: int
    x: float
    y: float
    shade: str
    text: str

    @property
    def agreement(self) -> str:
        """The agreement at full precision; "" where it is undefined."""
        known = self.shade != UNMEASURED and math.isfinite(self.cell.finding.agreement)
        return repr(self.cell.finding.agreement) if known else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMap:
    """Layers x heads: sizes in pixels, and the squares row by row."""

    grid: ClaimGrid
    side: float
    height: float
    rows: tuple[tuple[Row, tuple[Square, ...]], ...]

    @property
    def numbered(self) -> bool:
        """True if squares are wide enough for a number."""
        return self.side >= 36

    @property
    def columns(self) -> list[tuple[int, float]]:
        """Each head's number and the middle of its column; every eighth where the columns are too narrow for all."""
        step = 1 if self.numbered else 8
        return [(head, LABEL_WIDTH + (head + 0.5) * self.side) for head in range(0, self.grid.width, step)]

    def shows_row(self, index: int) -> bool:
        """Return whether the row has its layer's number; every eighth where there are too many rows for all."""
        return len(self.rows) <= 24 or index % 8 == 0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole map."""
        return LABEL_WIDTH + self.grid.width * self.side, HEADER_HEIGHT + len(self.rows) * self.height


def head_maps(grids: Sequence[ClaimGrid]) -> tuple[list[HeadMap], list[int]]:
    """Return a map for every leading claim, and for each claim the index of the map that shows it.

    Claims of one theory on the same heads share a map; a claim on other heads has its own.
    """
    leads = {grid.claim for grid in leading(grids)}
    maps: list[HeadMap] = []
    map_of: dict[Claim, int] = {}
    shared: dict[tuple[str, tuple[tuple[int, str, int], ...]], int] = {}
    for grid in sorted(grids, key=lambda grid: grid.claim not in leads):
        heads = (grid.claim.theory, grid.heads)
        if grid.claim in leads or heads not in shared:
            shared.setdefault(heads, len(maps))
            map_of[grid.claim] = len(maps)
            maps.append(_map(grid))
        else:
            map_of[grid.claim] = shared[heads]
    return maps, [map_of[grid.claim] for grid in grids]


def _map(grid: ClaimGrid) -> HeadMap:
    """Lay out every head. Squares shrink with the number of heads and have no numbers below 30 pixels."""
    side = float(min(max((MAP_WIDTH - LABEL_WIDTH) // max(grid.width, 1), 12), 60))
    height = 34.0 if len(grid.rows) <= 16 else 24.0
    rows, index = [], 0
    for i, row in enumerate(grid.rows):
        squares = [
            Square(
                cell=cell,
                index=index + j,
                x=LABEL_WIDTH + cell.finding.head * side,
                y=HEADER_HEIGHT + i * height,
                shade=shade_of(cell.finding),
                text=square_text(cell.finding),
            )
            for j, cell in enumerate(row.cells)
        ]
        rows.append((row, tuple(squares)))
        index += len(squares)
    return HeadMap(grid=grid, side=side, height=height, rows=tuple(rows))


def shade_of(finding: Finding) -> str:
    """Return the CSS class that colours a head: by its agreement where the verdict supports or contradicts the theory.

    Heads with another verdict are grey, whatever their number: it may be noise. A theory that predicts only a direction
    has one colour for each side.
    """
    if finding.verdict is Verdict.NOT_APPLICABLE or not math.isfinite(finding.value):
        return UNMEASURED
    side = VERDICT_SHADES.get(finding.verdict)
    if side is None:
        return WITHOUT_SCALE
    if finding.claim.direction is not None or not math.isfinite(finding.agreement):
        return shade(side)
    return shade(math.copysign(max(abs(finding.agreement), PALEST), side))


def square_text(finding: Finding) -> str:
    """Return the number in a square: the agreement, or the value where the agreement is undefined."""
    if shade_of(finding) == UNMEASURED:
        return ""
    return agreement(finding.agreement) if math.isfinite(finding.agreement) else short(finding.value)


def shade(value: float) -> str:
    """Return the CSS class of a number from -1 to 1."""
    return f"a{round(min(max(value, -1.0), 1.0) * 100):d}"


def key_shade(verdict: Verdict) -> str:
    """Return the CSS class of a verdict's square in the legend."""
    if verdict is Verdict.NOT_APPLICABLE:
        return UNMEASURED
    agreements = {Verdict.SUPPORTED: 0.9, Verdict.PARTLY_SUPPORTED: 0.4, Verdict.CONTRADICTED: -0.6}
    return shade(agreements[verdict]) if verdict in agreements else WITHOUT_SCALE


def legend_shades() -> list[str]:
    """Return the CSS classes of the legend's steps from -1 to 1."""
    return [shade(step / 20) for step in range(-20, 21)]


def shade_styles() -> str:
    """Return the CSS rules of all shades, for light and dark pages."""
    return f"{_rules(LIGHT)}@media (prefers-color-scheme: dark) {{{_rules(DARK)}}}"


def _rules(scale: Scale) -> str:
    values = {shade(step / 100): step / 100 for step in range(-100, 101)}
    return "".join(
        f".{s}{{fill:{scale.fill(v)}}}.{s} :is(text,.mark){{fill:{scale.ink(v)}}}" for s, v in values.items()
    )
