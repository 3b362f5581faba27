"""The page's map of heads: positions, colours and numbers of its squares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.audit.findings import Finding, Verdict
from clearhead.report.colours import DARK, LIGHT, Scale
from clearhead.report.grid import Cell, ClaimGrid, Row, leading
from clearhead.report.wording import agreement, short
from clearhead.theories.theory import Claim

__all__ = [
    "HEADER_HEIGHT", "LABEL_WIDTH", "MAP_WIDTH", "UNMEASURED", "WITHOUT_SCALE", "HeadMap", "Square", "head_maps",
    "legend_shades", "shade", "shade_of", "shade_styles", "square_text",
]  # fmt: skip

MAP_WIDTH = 1040
LABEL_WIDTH = 44
HEADER_HEIGHT = 22
UNMEASURED, WITHOUT_SCALE = "unmeasured", "plain"
VERDICT_SHADES = {Verdict.SUPPORTED: 0.5, Verdict.CONTRADICTED: -0.5}
"""For claims that predict only a direction: the agreement whose colour stands for a verdict."""


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
        return self.side >= 30

    @property
    def columns(self) -> list[tuple[int, float]]:
        """Each head's number and the middle of its column; every eighth where the columns are too narrow for all."""
        step = 1 if self.side >= 24 else 8
        return [(head, LABEL_WIDTH + (head + 0.5) * self.side) for head in range(0, self.grid.width, step)]

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
    side = float(min(max((MAP_WIDTH - LABEL_WIDTH) // max(grid.width, 1), 15), 72))
    height = 34.0 if len(grid.rows) <= 24 else 22.0
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
    """Return the CSS class that colours a head: by its agreement, or plain where the agreement is undefined.

    A theory that predicts only a direction has three colours: supported, contradicted, and neither.
    """
    if finding.verdict is Verdict.NOT_APPLICABLE or not math.isfinite(finding.value):
        return UNMEASURED
    if finding.claim.direction is not None:
        return shade(VERDICT_SHADES.get(finding.verdict, 0.0))
    return shade(finding.agreement) if math.isfinite(finding.agreement) else WITHOUT_SCALE


def square_text(finding: Finding) -> str:
    """Return the number in a square: the agreement, or the value where the agreement is undefined."""
    if shade_of(finding) == UNMEASURED:
        return ""
    return agreement(finding.agreement) if math.isfinite(finding.agreement) else short(finding.value)


def shade(value: float) -> str:
    """Return the CSS class of a number from -1 to 1."""
    return f"a{round(min(max(value, -1.0), 1.0) * 100):d}"


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
