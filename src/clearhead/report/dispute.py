"""A dispute between publications on one model: the statistics each position rests on, and the verdicts of the heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clearhead.audit.judging import Summary
from clearhead.calibration.results import RandomLevel
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
    random_models: Mapping[str, RandomLevel] = field(default_factory=dict)
    """What the statistics are on random models, where the calibration has it."""


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


def summary_table(
    summaries: Sequence[Summary], *, absent: Sequence[str] = (), random_models: Mapping[str, RandomLevel] | None = None
) -> SummaryTable:
    """Return a table of claims."""
    controls = dict.fromkeys(name for summary in summaries for name in summary.controls)
    statistics = {summary.claim.statistic for summary in summaries}
    return SummaryTable(
        controls=tuple(controls),
        summaries=tuple(summaries),
        absent=tuple(absent),
        random_models={name: level for name, level in (random_models or {}).items() if name in statistics},
    )


def view_dispute(
    dispute: Dispute, grids: Sequence[ClaimGrid], random_models: Mapping[str, RandomLevel] | None = None
) -> DisputeView:
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
                    random_models=random_models,
                ),
            )
            for position in dispute.positions
        ),
        deciding=tuple(grid.summary for grid in leading(grids) if grid.claim.theory == dispute.theory),
        conditions=summary_table(conditions),
    )
