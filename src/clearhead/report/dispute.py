"""A dispute between publications on one model: the statistics each position rests on, and the verdicts of the heads."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.audit.judging import Summary
from clearhead.report.grid import ClaimGrid, further_claims, leading
from clearhead.theories.theory import Dispute, Position, Role

__all__ = ["DisputeView", "PositionView", "SummaryTable", "summary_table", "view_dispute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """Claims in rows, and in columns every control that any of them has."""

    controls: tuple[str, ...]
    summaries: tuple[Summary, ...]
    absent: tuple[str, ...] = ()
    """Statistics that were not measured in this audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionView:
    """A publication's position, and its statistics on this model."""

    position: Position
    table: SummaryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DisputeView:
    """A dispute as the page shows it: positions, the claims that decide, and the conditions for them."""

    dispute: Dispute
    positions: tuple[PositionView, ...]
    deciding: tuple[Summary, ...]
    conditions: SummaryTable


def summary_table(summaries: Sequence[Summary], *, absent: Sequence[str] = ()) -> SummaryTable:
    """Return a table of claims."""
    controls = dict.fromkeys(name for summary in summaries for name in summary.controls)
    return SummaryTable(controls=tuple(controls), summaries=tuple(summaries), absent=tuple(absent))


def view_dispute(dispute: Dispute, grids: Sequence[ClaimGrid]) -> DisputeView:
    """Look up the claims of a dispute among those that were measured."""
    measured = {grid.claim.statistic: grid.summary for grid in grids if grid.claim.theory == dispute.theory}
    conditions = [grid.summary for grid in further_claims(grids, dispute.theory, Role.SECONDARY)]
    return DisputeView(
        dispute=dispute,
        positions=tuple(
            PositionView(
                position=position,
                table=summary_table(
                    [measured[name] for name in position.rests_on if name in measured],
                    absent=[name for name in position.rests_on if name not in measured],
                ),
            )
            for position in dispute.positions
        ),
        deciding=tuple(grid.summary for grid in leading(grids) if grid.claim.theory == dispute.theory),
        conditions=summary_table(conditions),
    )
