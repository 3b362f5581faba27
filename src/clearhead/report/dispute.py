"""A dispute between publications, as one model lets it be seen: what each rests on, and what the heads say."""

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import Summary
from clearhead.report.grid import ClaimGrid, leading, others
from clearhead.theories.theory import Dispute, Position, Role

__all__ = ["DisputeView", "PositionView", "SummaryTable", "conclusion", "summary_table", "view_dispute"]


def conclusion(summary: Summary) -> str:
    """Say in one sentence what the verdicts on a claim that decides come to, by rule and without taking sides.

    Whether any head agrees with the theory comes first, then how the heads that do not are spread. Heads that could
    not be measured, or had too few inputs, count for neither side.
    """
    of = {verdict: summary.verdicts.get(verdict, 0) for verdict in Verdict}
    judged = sum(of[verdict] for verdict in _TOLD)
    if not summary.measured:
        return "This model says nothing on it: no head could be measured."
    if of[Verdict.TRUE_BY_CONSTRUCTION]:
        return "This model cannot decide it: the statement holds by the way it is computed."
    if not judged:
        return "This audit leaves it open: there were too few inputs to judge any head."
    agree = of[Verdict.SUPPORTED]
    left = judged - agree
    if not left:
        return f"On this model {_all(judged)} judged {'agree' if judged > 1 else 'agrees'} with the theory."
    first = f"{agree} of {judged} heads judged {'agree' if agree > 1 else 'agrees'}" if agree else "no head agrees"
    spread = [f"{of[verdict]} {words}" for verdict, words in _TOLD.items() if words and of[verdict]]
    if len(spread) == 1:
        others = ("the others" if left > 1 else "the other") if agree else f"{_all(judged)} judged"
        rest = f"{others} {'are' if left > 1 else 'is'} {spread[0].removeprefix(f'{left} ')}"
    else:
        rest = f"of {'the others' if agree else f'{judged} judged'}, {_listed(spread)}"
    return f"On this model {first} with the theory; {rest}."


_TOLD = {
    Verdict.SUPPORTED: "",
    Verdict.PARTLY_SUPPORTED: "partly supported",
    Verdict.NO_EVIDENCE: "without evidence",
    Verdict.CONTRADICTED: "contradicted",
}


def _all(count: int) -> str:
    return f"all {count} heads" if count > 1 else "the one head"


def _listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """Claims beside every control that any of them has."""

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
    """Everything that the page shows of a dispute: positions, the claims that decide, and the conditions for them."""

    dispute: Dispute
    positions: tuple[PositionView, ...]
    deciding: tuple[Summary, ...]
    conditions: SummaryTable


def summary_table(summaries: Sequence[Summary], *, absent: Sequence[str] = ()) -> SummaryTable:
    """Put claims into one table."""
    controls = dict.fromkeys(name for summary in summaries for name in summary.controls)
    return SummaryTable(controls=tuple(controls), summaries=tuple(summaries), absent=tuple(absent))


def view_dispute(dispute: Dispute, grids: Sequence[ClaimGrid]) -> DisputeView:
    """Find what a dispute speaks of among the claims that were measured."""
    measured = {grid.claim.statistic: grid.summary for grid in grids if grid.claim.theory == dispute.theory}
    conditions = [grid.summary for grid in others(grids, dispute.theory, Role.SECONDARY)]
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
