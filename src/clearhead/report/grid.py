"""The findings of a record, arranged as layers x heads for each claim."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import Summary, summarise
from clearhead.numerics.moments import false_discovery_rate
from clearhead.report.wording import reason
from clearhead.theories.theory import Claim, Role

__all__ = ["Cell", "ClaimGrid", "Row", "arrange", "heads_above_chance", "leading", "others", "skipped_heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One finding, its place in the record, and its p-value adjusted among the heads of its claim."""

    index: int
    finding: Finding
    adjusted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer: its heads in order."""

    layer: int
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGrid:
    """One claim: its summary, and one row per layer on which it was asked."""

    summary: Summary
    rows: tuple[Row, ...]

    @property
    def claim(self) -> Claim:
        """The claim that every cell measures."""
        return self.summary.claim

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All heads, layer by layer."""
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def places(self) -> tuple[tuple[int, str, int], ...]:
        """Layer, module and head of every cell."""
        return tuple((cell.finding.layer, cell.finding.name, cell.finding.head) for cell in self.cells)

    @property
    def width(self) -> int:
        """One more than the largest head number."""
        return max((cell.finding.head + 1 for cell in self.cells), default=0)


def arrange(findings: Iterable[Finding]) -> list[ClaimGrid]:
    """One grid per claim, in the order in which the claims appear; layers and heads in ascending order."""
    findings = list(findings)
    families: dict[Claim, list[int]] = defaultdict(list)
    for i, finding in enumerate(findings):
        families[finding.claim].append(i)
    return [
        ClaimGrid(summary=summary, rows=_rows(findings, members))
        for summary, members in zip(summarise(findings), families.values(), strict=True)
    ]


def _rows(findings: list[Finding], members: list[int]) -> tuple[Row, ...]:
    adjusted = false_discovery_rate(np.array([findings[i].p_value for i in members], dtype=np.float64))
    cells: dict[tuple[int, str], list[Cell]] = defaultdict(list)
    for i, p in zip(members, adjusted, strict=True):
        finding = findings[i]
        cells[finding.layer, finding.name].append(Cell(index=i, finding=finding, adjusted=float(p)))
    return tuple(
        Row(layer=layer, name=name, cells=tuple(sorted(cells[layer, name], key=lambda cell: cell.finding.head)))
        for layer, name in sorted(cells)
    )


def leading(grids: Sequence[ClaimGrid]) -> list[ClaimGrid]:
    """The primary claims; of a theory that has none, its first claim."""
    decided = {grid.claim.theory for grid in grids if grid.claim.role is Role.PRIMARY}
    first = {grid.claim.theory: grid for grid in reversed(grids)}
    return [
        grid
        for grid in grids
        if grid.claim.role is Role.PRIMARY or (grid.claim.theory not in decided and first[grid.claim.theory] is grid)
    ]


def others(grids: Sequence[ClaimGrid], theory: str, role: Role) -> list[ClaimGrid]:
    """The claims of a theory with this role that do not lead."""
    ahead = [grid.claim for grid in leading(grids)]
    return [g for g in grids if g.claim.theory == theory and g.claim.role is role and g.claim not in ahead]


def heads_above_chance(summary: Summary) -> int:
    """How many heads lie on the theory's side of chance with false discoveries held to the rate of the verdicts."""
    return summary.verdicts.get(Verdict.SUPPORTED, 0) + summary.verdicts.get(Verdict.PARTLY_SUPPORTED, 0)


def skipped_heads(grid: ClaimGrid) -> dict[str, int]:
    """How many heads the claim could not be measured on, by reason."""
    missing = (c.finding for c in grid.cells if c.finding.verdict is Verdict.NOT_APPLICABLE)
    return dict(Counter(reason(finding) for finding in missing))
