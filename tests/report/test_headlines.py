"""Headlines follow from verdict counts by rule; the evidence names median, control and prediction."""

import dataclasses
import math

import pytest

from clearhead.audit.findings import NoEvidence, Verdict
from clearhead.audit.judging import Summary, summarise
from clearhead.audit.record import AuditRecord
from clearhead.report.wording import closest_control, evidence, headline, in_prose, main_verdict, meaning, numbers
from clearhead.theories.theory import Direction, PlainWords, Unit
from tests.report.synthetic import KERNEL_PCA, LOSS, OVERLAP

SHORT = {
    "supported": Verdict.SUPPORTED,
    "partly": Verdict.PARTLY_SUPPORTED,
    "none": Verdict.NO_EVIDENCE,
    "contradicted": Verdict.CONTRADICTED,
    "not_applicable": Verdict.NOT_APPLICABLE,
    "undecided": Verdict.UNDECIDED,
    "certain": Verdict.TRUE_BY_CONSTRUCTION,
}


@pytest.fixture(scope="module")
def summary(record: AuditRecord) -> Summary:
    return dataclasses.replace(summarise(record.findings)[0], no_evidence={})


def with_counts(summary: Summary, **counts: int) -> Summary:
    verdicts = {SHORT[name]: count for name, count in counts.items()}
    return dataclasses.replace(summary, heads=sum(counts.values()), verdicts=verdicts)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"not_applicable": 7}, "Kernel PCA applies to none of the 7 heads."),
        ({"certain": 7}, "Kernel PCA is true by construction in all 7 heads."),
        ({"undecided": 5, "not_applicable": 2}, "Kernel PCA is undecided in all 5 heads judged."),
        ({"supported": 7, "not_applicable": 3}, "Kernel PCA is supported in all 7 heads judged."),
        ({"supported": 1}, "Kernel PCA is supported in the only head."),
        ({"none": 72}, "No evidence for kernel PCA in any of 72 heads."),
        ({"none": 1, "not_applicable": 2}, "No evidence for kernel PCA in the only head judged."),
        (
            {"partly": 11, "none": 59, "contradicted": 2},
            "No evidence for kernel PCA in 59 of 72 heads; partly supported in 11, contradicted in 2.",
        ),
        (
            {"supported": 1, "partly": 3, "none": 9},
            "No evidence for kernel PCA in 9 of 13 heads; partly supported in 3, supported in 1.",
        ),
        ({"partly": 5, "contradicted": 1}, "Kernel PCA is partly supported in 5 of 6 heads; contradicted in 1."),
        ({"contradicted": 5, "supported": 2}, "Kernel PCA is contradicted in 5 of 7 heads; supported in 2."),
    ],
    ids=str,
)
def test_the_headline_follows_from_the_counts(summary: Summary, counts: dict[str, int], expected: str) -> None:
    assert headline(with_counts(summary, **counts)) == expected


def test_only_primary_claims_give_a_theorys_headline(summary: Summary) -> None:
    secondary = dataclasses.replace(with_counts(summary, none=3), claim=OVERLAP)
    assert headline(secondary) == "No evidence for kernel PCA by subspace overlap in any of 3 heads."
    by_layer = dataclasses.replace(with_counts(summary, none=3), claim=dataclasses.replace(KERNEL_PCA, unit=Unit.LAYER))
    assert headline(by_layer) == "No evidence for kernel PCA in any of 3 layers."


def test_the_evidence_names_median_control_and_prediction(summary: Summary) -> None:
    known = dataclasses.replace(
        summary, median=0.2904, predicted=1.0, controls={"a random value map": 0.3218}, decisive=("a random value map",)
    )
    assert evidence(known) == (
        "Captured variance is 29% in the median head and 32% for a random value map; the theory predicts 100%."
    )
    loss = dataclasses.replace(known, claim=LOSS, predicted=0.8)
    assert evidence(loss) == (
        "Projection loss is 0.29 in the median head and 0.32 for a random value map; the theory predicts 0.80."
    )
    lower = dataclasses.replace(KERNEL_PCA, predicted=None, direction=Direction.LOWER)
    assert evidence(dataclasses.replace(known, claim=lower, predicted=math.nan)).endswith(
        "32% for a random value map; the theory predicts a lower value than every control."
    )


def test_the_evidence_says_what_would_have_been_detected(summary: Summary) -> None:
    kinds = {NoEvidence.BETWEEN: 2, NoEvidence.EQUIVALENT: 9, NoEvidence.TOO_LITTLE_POWER: 1}
    some = dataclasses.replace(summary, no_evidence=kinds, detectable=0.342)
    assert evidence(some).endswith(
        " Without evidence: 9 heads equivalent to the controls, 2 between controls, 1 with too little power. 34% of "
        "the predicted effect would have been detected in the median of them."
    )
    assert evidence(dataclasses.replace(some, detectable=1.2)).endswith(
        " Even the whole predicted effect would not have been detected in the median of them."
    )
    lower = dataclasses.replace(KERNEL_PCA, predicted=None, direction=Direction.LOWER, percent=False)
    assert evidence(dataclasses.replace(some, claim=lower, predicted=math.nan)).endswith(
        " A difference of 0.34 from the closest control would have been detected in the median of them."
    )
    assert "Without evidence" not in evidence(dataclasses.replace(some, no_evidence={}))


def test_the_evidence_needs_neither_controls_nor_a_prediction(summary: Summary) -> None:
    bare = dataclasses.replace(summary, controls={}, decisive=(), predicted=math.nan, median=0.25)
    assert evidence(bare) == "Captured variance is 25% in the median head."
    unmeasured = dataclasses.replace(summary, median=math.nan)
    assert evidence(unmeasured) == "Captured variance could not be measured in any head."


def test_percentages_have_two_digits_and_near_one_hundred_three() -> None:
    values = (0.29, 0.0029, 1.0, 0.9962, 0.0, -0.123, 12.34, math.nan)
    assert [in_prose(KERNEL_PCA, v) for v in values] == ["29%", "0.29%", "100%", "99.6%", "0%", "-12%", "1234%", "-"]
    assert [in_prose(LOSS, v) for v in (0.29, -0.0801, 1234.5)] == ["0.29", "-0.080", "1234"]


def test_the_closest_control_is_the_decisive_one_nearest_to_the_theory(summary: Summary) -> None:
    controls = {"low": 0.2, "high": 0.6, "gone": math.nan}
    judged = dataclasses.replace(summary, controls=controls, decisive=tuple(controls))
    assert closest_control(dataclasses.replace(judged, predicted=1.0)) == "high"
    assert closest_control(dataclasses.replace(judged, predicted=0.0)) == "low"
    assert closest_control(dataclasses.replace(judged, predicted=math.nan)) == "low"
    assert closest_control(dataclasses.replace(judged, predicted=1.0, decisive=("low",))) == "low"
    assert closest_control(dataclasses.replace(judged, decisive=("gone",))) == ""


WORDS = PlainWords(says="It says.", supported="Yes.", no_evidence="No.", contradicted="The opposite.")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"supported": 5, "none": 2}, "Yes."),
        ({"none": 5, "supported": 2}, "No."),
        ({"contradicted": 3, "not_applicable": 60}, "The opposite."),
        ({"not_applicable": 7}, ""),
        ({"partly": 4}, "The theory describes these heads in part: they lie beyond every control, but short of the "
         "prediction."),
        ({"undecided": 4}, "There is no test yet: audit more inputs, and let the audit draw its baseline."),
    ],
    ids=str,
)  # fmt: skip
def test_the_meaning_is_that_of_the_main_verdict(summary: Summary, counts: dict[str, int], expected: str) -> None:
    assert meaning(with_counts(summary, **counts), WORDS) == expected


def test_too_little_power_is_no_answer(summary: Summary) -> None:
    weak = dataclasses.replace(with_counts(summary, none=3), no_evidence={NoEvidence.TOO_LITTLE_POWER: 3})
    assert main_verdict(weak) is Verdict.NO_EVIDENCE
    assert meaning(weak, WORDS).startswith("The audit cannot tell")
    assert meaning(dataclasses.replace(weak, no_evidence={NoEvidence.EQUIVALENT: 3}), WORDS) == "No."


def test_the_numbers_are_the_first_sentence_of_the_evidence(record: AuditRecord) -> None:
    (whole,) = summarise(record.findings)
    assert evidence(whole).startswith(f"{numbers(whole)} Without evidence: ")
