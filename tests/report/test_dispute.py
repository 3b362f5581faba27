"""The tables of a dispute: the statistics of each position, and the claims that decide."""

import dataclasses

import pytest

from clearhead.audit.record import AuditRecord
from clearhead.calibration.results import Calibration, RandomCounts, RandomLevel
from clearhead.report import calibration
from clearhead.report.grid import arrange
from clearhead.report.html import render_html, view_dispute
from clearhead.theories.catalogue import TheorySource
from clearhead.theories.theory import Position
from tests.report.synthetic import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, MAX_MARGIN, OVERLAP


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


def test_each_statistic_is_shown_with_its_level_on_random_models(
    disputed: AuditRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = RandomCounts(published={LOSS.statistic: [0.95, 0.97, 0.99], "of no position": [1.0]})
    made = Calibration(settings={}, version="1", random={"a": {"kernel-pca": counts}})
    monkeypatch.setattr(calibration, "_shipped", lambda: made)
    source = TheorySource(key="kernel-pca", title=DISPUTE.theory, package="clearhead", version="9")
    disputed = dataclasses.replace(disputed, theories=(source,))
    levels = calibration.levels_of_random_models(disputed)[DISPUTE.theory]
    assert levels[LOSS.statistic] == RandomLevel(0.97, pytest.approx(0.952), pytest.approx(0.988), 3)
    first, second = view_dispute(DISPUTE, arrange(disputed.findings), levels).positions
    assert set(first.table.random_models) == {LOSS.statistic}
    assert second.table.random_models == {}
    page = render_html(disputed)
    assert page.count("0.970 (0.952 to 0.988)") == 1
    assert page.count(">Random models</th>") == 1
    assert "over 3 models" in page


def test_without_a_calibration_there_is_no_column_of_random_models(
    disputed: AuditRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_shipped", lambda: None)
    assert calibration.levels_of_random_models(disputed) == {}
    assert "Random models" not in render_html(disputed)


def test_what_is_known_about_the_evidence_is_on_the_page(disputed: AuditRecord) -> None:
    texts = ("the first <remark>", "the second")
    page = render_html(dataclasses.replace(disputed, disputes=(dataclasses.replace(DISPUTE, evidence=texts),)))
    assert "<p>the first &lt;remark&gt;</p>" in page
    assert "<p>the second</p>" in page
    assert "About the evidence" not in render_html(disputed)


def test_positions_on_a_theory_without_a_dispute_are_shown_with_its_verdict(disputed: AuditRecord) -> None:
    said, other = (Position(source=source, says="They <all> do.", rests_on=("x",)) for source in ("A & B", "C & D"))
    assert DISPUTE.theory != MAX_MARGIN.theory
    page = render_html(dataclasses.replace(disputed, positions={MAX_MARGIN.theory: (said,), DISPUTE.theory: (other,)}))
    assert "A &amp; B:</b> They &lt;all&gt; do." in page
    assert "C &amp; D" not in page, "the dispute has its own positions"
