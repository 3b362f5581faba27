"""The tables of a dispute: the statistics of each position, and the claims that decide."""

import dataclasses

from clearhead.audit.record import AuditRecord
from clearhead.report.dispute import view_dispute
from clearhead.report.grid import arrange
from tests.report.synthetic import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, OVERLAP


def test_each_side_lists_its_statistics(disputed: AuditRecord) -> None:
    view = view_dispute(DISPUTE, arrange(disputed.findings))
    first, second = view.positions
    assert [s.claim for s in first.table.summaries] == [LOSS]
    assert first.table.controls == ("random values",)
    assert [s.claim for s in second.table.summaries] == [EIGENVALUE]
    assert second.table.absent == ("a statistic of another audit",)
    assert [s.claim for s in view.deciding] == [KERNEL_PCA]
    assert [s.claim for s in view.conditions.summaries] == [OVERLAP]
    assert view.conditions.controls == ("random values", "values of other heads")


def test_a_dispute_about_a_theory_that_was_not_measured_has_nothing_to_show(disputed: AuditRecord) -> None:
    view = view_dispute(dataclasses.replace(DISPUTE, theory="another"), arrange(disputed.findings))
    assert view.deciding == ()
    assert [side.table.summaries for side in view.positions] == [(), ()]
