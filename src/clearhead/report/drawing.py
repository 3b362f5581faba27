"""Where the heads stand in the report's map, and what colours them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.audit.findings import Finding, Verdict
from clearhead.report.colours import DARK, LIGHT, Scale
from clearhead.report.grid import Cell, ClaimGrid, Row, leading
from clearhead.report.wording import agreement, short
from clearhead.theories.theory import Claim

__all__ = ["HeatMap", "Square", "colour_bar", "maps_of_heads", "shade_of", "styles_of_shades", "text_of"]

MAP_WIDTH = 1040
LABEL_WIDTH = 44
HEADER_HEIGHT = 22
UNMEASURED, WITHOUT_SCALE = "unmeasured", "plain"
BEYOND = {Verdict.SUPPORTED: 0.5, Verdict.CONTRADICTED: -0.5}
"""The agreement whose colour a verdict has where there is no agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One head of the map: its corner, the class that colours it, and its number."""

    cell: Cell
    place: int
    x: float
    y: float
    shade: str
    text: str

    @property
    def agreement(self) -> str:
        """The agreement as a number for programs; empty where there is none."""
        known = self.shade != UNMEASURED and math.isfinite(self.cell.finding.agreement)
        return repr(self.cell.finding.agreement) if known else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Layers x heads: sizes in pixels, and the squares row by row."""

    grid: ClaimGrid
    side: float
    height: float
    rows: tuple[tuple[Row, tuple[Square, ...]], ...]

    @property
    def numbered(self) -> bool:
        """Whether a number has room in a square."""
        return self.side >= 30

    @property
    def columns(self) -> list[tuple[int, float]]:
        """Each head's number and the middle of its column; every eighth where the columns are too narrow for all."""
        step = 1 if self.side >= 24 else 8
        return [(head, LABEL_WIDTH + (head + 0.5) * self.side) for head in range(0, self.grid.width, step)]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole picture."""
        return LABEL_WIDTH + self.grid.width * self.side, HEADER_HEIGHT + len(self.rows) * self.height


def maps_of_heads(grids: Sequence[ClaimGrid]) -> tuple[list[HeatMap], list[int]]:
    """A map for every claim that leads, and the map that each claim is shown on.

    Claims of one theory on the same heads share a map; a claim on other heads has one of its own.
    """
    ahead = {grid.claim for grid in leading(grids)}
    maps: list[HeatMap] = []
    own: dict[Claim, int] = {}
    shared: dict[tuple[str, tuple[tuple[int, str, int], ...]], int] = {}
    for grid in sorted(grids, key=lambda grid: grid.claim not in ahead):
        heads = (grid.claim.theory, grid.places)
        if grid.claim in ahead or heads not in shared:
            shared.setdefault(heads, len(maps))
            own[grid.claim] = len(maps)
            maps.append(_map(grid))
        else:
            own[grid.claim] = shared[heads]
    return maps, [own[grid.claim] for grid in grids]


def _map(grid: ClaimGrid) -> HeatMap:
    """Place every head; squares shrink as heads and layers become many, and lose their numbers below 30 pixels."""
    side = float(min(max((MAP_WIDTH - LABEL_WIDTH) // max(grid.width, 1), 15), 72))
    height = 34.0 if len(grid.rows) <= 24 else 22.0
    rows, place = [], 0
    for i, row in enumerate(grid.rows):
        squares = [
            Square(
                cell=cell,
                place=place + j,
                x=LABEL_WIDTH + cell.finding.head * side,
                y=HEADER_HEIGHT + i * height,
                shade=shade_of(cell.finding),
                text=text_of(cell.finding),
            )
            for j, cell in enumerate(row.cells)
        ]
        rows.append((row, tuple(squares)))
        place += len(squares)
    return HeatMap(grid=grid, side=side, height=height, rows=tuple(rows))


def shade_of(finding: Finding) -> str:
    """Name of the class that colours a head; a value on which theory and chance set no scale has a plain one.

    Where a theory tells a direction only, there are three colours: beyond chance on either side, and neither.
    """
    if finding.verdict is Verdict.NOT_APPLICABLE or not math.isfinite(finding.value):
        return UNMEASURED
    if finding.claim.direction is not None:
        return _shade(BEYOND.get(finding.verdict, 0.0))
    return _shade(finding.agreement) if math.isfinite(finding.agreement) else WITHOUT_SCALE


def text_of(finding: Finding) -> str:
    """The number in a square: the agreement, or the value itself where there is no scale."""
    if shade_of(finding) == UNMEASURED:
        return ""
    return agreement(finding.agreement) if math.isfinite(finding.agreement) else short(finding.value)


def _shade(value: float) -> str:
    return f"a{round(min(max(value, -1.0), 1.0) * 100):d}"


def colour_bar() -> list[str]:
    """Classes of the legend's steps from -1 to 1."""
    return [_shade(step / 20) for step in range(-20, 21)]


def styles_of_shades() -> str:
    """Style rules for every shade there can be, on light pages and on dark ones."""
    return f"{_rules(LIGHT)}@media (prefers-color-scheme: dark) {{{_rules(DARK)}}}"


def _rules(scale: Scale) -> str:
    values = {_shade(step / 100): step / 100 for step in range(-100, 101)}
    return "".join(
        f".{s}{{fill:{scale.fill(v)}}}.{s} :is(text,.mark){{fill:{scale.ink(v)}}}" for s, v in values.items()
    )
