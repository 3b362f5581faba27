"""The sentence that ends a dispute is made from verdict counts by rule, and takes no side."""

import dataclasses

import pytest

from clearhead.audit.findings import Verdict
from clearhead.audit.judging import Summary, summarise
from clearhead.audit.record import AuditRecord
from clearhead.report.dispute import conclusion, view_dispute
from clearhead.report.grid import arrange
from clearhead.report.wording import hardest, sentence
from tests.report.made_records import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, OVERLAP

SHORT = {
    "agree": Verdict.SUPPORTED,
    "above": Verdict.PARTLY_SUPPORTED,
    "chance": Verdict.NO_EVIDENCE,
    "below": Verdict.CONTRADICTED,
    "missing": Verdict.NOT_APPLICABLE,
    "open": Verdict.UNDECIDED,
    "certain": Verdict.TRUE_BY_CONSTRUCTION,
}


@pytest.fixture(scope="module")
def summary(record: AuditRecord) -> Summary:
    return summarise(record.findings)[0]


def with_counts(summary: Summary, **counts: int) -> Summary:
    verdicts = {SHORT[name]: count for name, count in counts.items()}
    return dataclasses.replace(summary, heads=sum(counts.values()), verdicts=verdicts)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"missing": 7}, "This model says nothing on it: no head could be measured."),
        ({}, "This model says nothing on it: no head could be measured."),
        ({"certain": 7}, "This model cannot decide it: the statement holds by the way it is computed."),
        ({"open": 5, "missing": 2}, "This audit leaves it open: there were too few inputs to judge any head."),
        ({"agree": 7, "missing": 3}, "On this model all 7 heads judged agree with the theory."),
        ({"agree": 1}, "On this model the one head judged agrees with the theory."),
        (
            {"chance": 72},
            "On this model no head agrees with the theory; all 72 heads judged are without evidence.",
        ),
        (
            {"chance": 1, "open": 2},
            "On this model no head agrees with the theory; the one head judged is without evidence.",
        ),
        (
            {"above": 11, "chance": 59, "below": 2},
            "On this model no head agrees with the theory; of 72 judged, 11 partly supported, "
            "59 without evidence and 2 contradicted.",
        ),
        (
            {"above": 11, "chance": 59},
            "On this model no head agrees with the theory; of 70 judged, 11 partly supported and 59 without evidence.",
        ),
        (
            {"agree": 1, "above": 3, "chance": 9},
            "On this model 1 of 13 heads judged agrees with the theory; of the others, 3 partly "
            "supported and 9 without evidence.",
        ),
        (
            {"agree": 5, "below": 1},
            "On this model 5 of 6 heads judged agree with the theory; the other is contradicted.",
        ),
        (
            {"agree": 5, "below": 2},
            "On this model 5 of 7 heads judged agree with the theory; the others are contradicted.",
        ),
    ],
    ids=str,
)
def test_the_conclusion_follows_from_the_counts(summary: Summary, counts: dict[str, int], expected: str) -> None:
    assert conclusion(with_counts(summary, **counts)) == expected


def test_heads_that_were_not_judged_count_for_neither_side(summary: Summary) -> None:
    judged = with_counts(summary, agree=3, chance=4)
    more = with_counts(summary, agree=3, chance=4, open=11, missing=13)
    assert conclusion(judged) == conclusion(more)
    assert conclusion(judged) != conclusion(with_counts(summary, agree=3, chance=15))


def test_a_view_finds_what_each_side_rests_on(disputed: AuditRecord) -> None:
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


def test_the_hardest_control_is_the_one_nearest_to_the_theory(summary: Summary) -> None:
    nan = float("nan")
    both = {"low": 0.2, "high": 0.6, "gone": nan}
    judged = dataclasses.replace(summary, controls=both, decisive=tuple(both))
    assert hardest(dataclasses.replace(judged, exact=1.0)) == "high"
    assert hardest(dataclasses.replace(judged, exact=0.0)) == "low"
    assert hardest(dataclasses.replace(judged, exact=nan)) == "low"
    assert hardest(dataclasses.replace(judged, exact=1.0, decisive=("low",))) == "low"
    assert hardest(dataclasses.replace(judged, decisive=("gone",))) == ""


def test_a_sentence_needs_neither_controls_nor_an_exact_value(summary: Summary) -> None:
    bare = dataclasses.replace(with_counts(summary, open=2), controls={}, decisive=(), exact=float("nan"), median=0.25)
    assert sentence(bare) == "Captured variance is 0.250 in the median head: undecided in all 2 heads."
    unmeasured = dataclasses.replace(with_counts(summary, missing=3), median=float("nan"))
    assert sentence(unmeasured) == "In no head could captured variance be measured."


def test_a_sentence_says_of_how_many_heads_a_theory_speaks(summary: Summary) -> None:
    silent = with_counts(summary, missing=3)
    assert sentence(silent).endswith("exact: the theory speaks of none of the 3 heads.")
    only = with_counts(summary, missing=3, open=1)
    assert sentence(only).endswith("exact: undecided in the only head judged.")
    some = with_counts(summary, missing=3, open=2)
    assert sentence(some).endswith("exact: undecided in all 2 heads judged.")
