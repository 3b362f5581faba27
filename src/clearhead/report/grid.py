"""The findings of a record, arranged as layers x heads for each claim."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clearhead.audit.findings import Finding, Verdict
from clearhead.audit.judging import Summary, summarise
from clearhead.numerics.moments import Interval
from clearhead.report.wording import skip_reason
from clearhead.theories.theory import Claim, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One finding and its index in the record."""

    index: int
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer: its heads in order."""

    layer: int
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGrid:
    """One claim: its summary, and one row per layer on which it was measured."""

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
    def heads(self) -> tuple[tuple[int, str, int], ...]:
        """Layer, module and head of every cell."""
        return tuple((cell.finding.layer, cell.finding.name, cell.finding.head) for cell in self.cells)

    @property
    def width(self) -> int:
        """The largest head number plus one."""
        return max((cell.finding.head + 1 for cell in self.cells), default=0)

    @property
    def reasons(self) -> dict[str, int]:
        """The reasons why heads are not judged, with their numbers of heads."""
        return skipped_heads(self)

    def control_range(self, control: str) -> Interval:
        """Return the middle 95% of a control's draws: medians of the two ends over the measured heads."""
        ranges = [
            result.range
            for cell in self.cells
            if math.isfinite(cell.finding.value)
            for result in cell.finding.controls
            if result.name == control and math.isfinite(result.range.low) and math.isfinite(result.range.high)
        ]
        if not ranges:
            return Interval(math.nan, math.nan)
        return Interval(statistics.median(r.low for r in ranges), statistics.median(r.high for r in ranges))


def arrange(findings: Iterable[Finding]) -> list[ClaimGrid]:
    """Return one grid per claim, in the order in which the claims appear; layers and heads in ascending order."""
    findings = list(findings)
    families: dict[Claim, list[int]] = defaultdict(list)
    for i, finding in enumerate(findings):
        families[finding.claim].append(i)
    return [
        ClaimGrid(summary=summary, rows=_rows(findings, members))
        for summary, members in zip(summarise(findings), families.values(), strict=True)
    ]


def _rows(findings: list[Finding], members: list[int]) -> tuple[Row, ...]:
    cells: dict[tuple[int, str], list[Cell]] = defaultdict(list)
    for i in members:
        finding = findings[i]
        cells[finding.layer, finding.name].append(Cell(index=i, finding=finding))
    return tuple(
        Row(layer=layer, name=name, cells=tuple(sorted(cells[layer, name], key=lambda cell: cell.finding.head)))
        for layer, name in sorted(cells)
    )


def leading(grids: Sequence[ClaimGrid]) -> list[ClaimGrid]:
    """Return the primary claims; of a theory without one, its first claim."""
    with_primary = {grid.claim.theory for grid in grids if grid.claim.role is Role.PRIMARY}
    first = {grid.claim.theory: grid for grid in reversed(grids)}
    return [
        grid
        for grid in grids
        if grid.claim.role is Role.PRIMARY
        or (grid.claim.theory not in with_primary and first[grid.claim.theory] is grid)
    ]


def further_claims(grids: Sequence[ClaimGrid], theory: str, role: Role) -> list[ClaimGrid]:
    """Return the claims of a theory with this role that do not lead."""
    leads = [grid.claim for grid in leading(grids)]
    return [g for g in grids if g.claim.theory == theory and g.claim.role is role and g.claim not in leads]


def beyond_controls(summary: Summary) -> int:
    """Count the heads that lie beyond every control on the theory's side, at the false discovery rate of 5%."""
    return summary.verdicts.get(Verdict.SUPPORTED, 0) + summary.verdicts.get(Verdict.PARTLY_SUPPORTED, 0)


def skipped_heads(grid: ClaimGrid) -> dict[str, int]:
    """Count by reason the heads that the claim does not apply to or could not be measured on."""
    skipped = (cell.finding for cell in grid.cells if cell.finding.verdict is Verdict.NOT_APPLICABLE)
    return dict(Counter(skip_reason(finding) for finding in skipped))
