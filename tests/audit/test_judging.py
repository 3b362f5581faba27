"""Verdicts of findings, and summaries over all heads."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from clearhead.audit.baseline import BASELINE, with_baseline
from clearhead.audit.findings import ControlResult, Finding, NoEvidence, Verdict
from clearhead.audit.judging import SUPPORT, judge, summarise
from clearhead.numerics.moments import Interval, RunningMoments
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.theory import Direction, Role
from tests.audit.synthetic_findings import CLAIM, LOWER, control, finding


def verdict(given: Finding) -> Verdict:
    return judge([given])[0].verdict


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (finding(0.99), Verdict.SUPPORTED),
        (finding(0.99, half=0.2), Verdict.PARTLY_SUPPORTED),
        (finding(0.5), Verdict.PARTLY_SUPPORTED),
        (finding(0.2), Verdict.CONTRADICTED),
        (finding(0.99, p=0.06), Verdict.NO_EVIDENCE),
        (finding(0.99, p=0.05), Verdict.SUPPORTED),
        (finding(math.nan), Verdict.NOT_APPLICABLE),
        (finding(0.99, inputs=0), Verdict.NOT_APPLICABLE),
        (finding(0.99, inputs=1, p=math.nan), Verdict.UNDECIDED),
        (finding(0.01, claim=LOWER), Verdict.SUPPORTED),
        (finding(0.01, claim=LOWER, half=0.1), Verdict.PARTLY_SUPPORTED),
        (finding(0.2, claim=LOWER), Verdict.PARTLY_SUPPORTED),
        (finding(0.5, claim=LOWER), Verdict.CONTRADICTED),
        (dataclasses.replace(finding(0.2), verdict=Verdict.TRUE_BY_CONSTRUCTION), Verdict.TRUE_BY_CONSTRUCTION),
    ],
)
def test_verdicts(given: Finding, expected: Verdict) -> None:
    assert verdict(given) is expected


def test_no_head_is_significant_if_the_null_reaches_the_prediction() -> None:
    assert verdict(finding(0.5, chance=1.0)) is Verdict.CONTRADICTED


FAR, NEAR = control(0.2, 1e-9, name="far"), control(0.6, 1e-9, name="near")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.99, Verdict.SUPPORTED),
        (0.8, Verdict.PARTLY_SUPPORTED),
        (0.4, Verdict.NO_EVIDENCE),
        (0.1, Verdict.CONTRADICTED),
    ],
)
def test_a_verdict_needs_every_control(value: float, expected: Verdict) -> None:
    assert verdict(finding(value, controls=(FAR, NEAR))) is expected
    assert verdict(finding(value, controls=(NEAR, FAR))) is expected


def test_each_control_alone_would_support_a_head_between_them() -> None:
    assert verdict(finding(0.4, controls=(FAR,))) is Verdict.PARTLY_SUPPORTED
    assert verdict(finding(0.4, controls=(NEAR,))) is Verdict.CONTRADICTED


def test_one_control_that_does_not_differ_from_the_head_gives_no_evidence() -> None:
    same = control(0.55, 0.4, name="same")
    assert verdict(finding(0.8, controls=(FAR, NEAR, same))) is Verdict.NO_EVIDENCE
    assert verdict(finding(0.8, controls=(FAR, NEAR))) is Verdict.PARTLY_SUPPORTED


def test_agreement_is_relative_to_the_closest_control() -> None:
    """The agreement of 0.93 is 0.91 relative to a control at 0.2, and 0.83 relative to one at 0.6."""
    assert verdict(finding(0.93, half=0.001, controls=(FAR,))) is Verdict.SUPPORTED
    assert verdict(finding(0.93, half=0.001, controls=(FAR, NEAR))) is Verdict.PARTLY_SUPPORTED


def test_support_needs_the_whole_interval() -> None:
    least = 0.3 + SUPPORT * 0.7
    assert verdict(finding(least + 0.0101)) is Verdict.SUPPORTED
    assert verdict(finding(least + 0.0099)) is Verdict.PARTLY_SUPPORTED


def test_judging_changes_nothing_but_the_verdict_and_keeps_the_order() -> None:
    given = [finding(0.1 * i, head=i, claim=(CLAIM, LOWER)[i % 2]) for i in range(7)]
    judged = judge(iter(given))
    plain = [
        dataclasses.replace(
            f, verdict=Verdict.UNDECIDED, adjusted_p_value=math.nan, no_evidence=None, detectable=math.nan
        )
        for f in judged
    ]
    assert repr(plain) == repr(given)
    assert all(f.verdict is not Verdict.UNDECIDED for f in judged)


def test_findings_keep_the_p_value_that_decided() -> None:
    values = [0.001, 0.01, 0.2, 0.03]
    judged = judge([finding(p=p, head=i) for i, p in enumerate(values)])
    assert [f.adjusted_p_value for f in judged] == pytest.approx(list(stats.false_discovery_control(values)))
    assert all((f.adjusted_p_value <= 0.05) is (f.verdict is not Verdict.NO_EVIDENCE) for f in judged)
    assert math.isnan(judge([finding(inputs=0, p=math.nan)])[0].adjusted_p_value)


def test_p_values_are_adjusted_within_a_claim_and_not_across_claims() -> None:
    lucky = finding(p=0.02)
    idle = [finding(p=0.9, head=i) for i in range(1, 11)]
    elsewhere = [dataclasses.replace(f, claim=LOWER) for f in idle]
    assert judge([lucky])[0].verdict is Verdict.PARTLY_SUPPORTED
    assert judge([lucky, *elsewhere])[0].verdict is Verdict.PARTLY_SUPPORTED
    assert judge([lucky, *idle])[0].verdict is Verdict.NO_EVIDENCE
    assert judge([lucky, *idle], rate=0.3)[0].verdict is Verdict.PARTLY_SUPPORTED


def test_heads_without_a_value_do_not_count_in_the_adjustment() -> None:
    gone = [finding(math.nan, p=math.nan, inputs=0, head=i) for i in range(1, 11)]
    assert judge([finding(p=0.02), *gone])[0].verdict is Verdict.PARTLY_SUPPORTED


def measured(rng: np.random.Generator, *, heads: int, real: int, inputs: int = 17) -> list[Finding]:
    """Return findings with random differences from the null; the first `real` heads have an effect."""
    moments = RunningMoments((heads,))
    shift = np.where(np.arange(heads) < real, 0.2, 0.0)
    for _ in range(inputs):
        moments.add(shift + 0.1 * rng.standard_normal(heads))
    low, high = moments.interval()
    p_values = moments.p_value()
    return [
        dataclasses.replace(
            finding(0.3 + float(moments.mean[i]), p=float(p_values[i]), inputs=inputs, head=i),
            interval=Interval(0.3 + float(low[i]), 0.3 + float(high[i])),
        )
        for i in range(heads)
    ]


def test_the_false_discovery_rate_is_controlled_only_with_adjustment() -> None:
    rng = np.random.default_rng(5)
    shares, crude = [], []
    for _ in range(97):
        judged = judge(measured(rng, heads=47, real=5))
        result = [f.head for f in judged if f.verdict is not Verdict.NO_EVIDENCE]
        naive = [f.head for f in judged if f.p_value <= 0.05]
        shares.append(sum(h >= 5 for h in result) / max(len(result), 1))
        crude.append(sum(h >= 5 for h in naive) / max(len(naive), 1))
        assert set(range(5)) <= set(result)
    assert np.mean(shares) < 0.06
    assert np.mean(crude) > 0.15


def test_a_head_that_the_theory_does_not_cover_keeps_its_value_and_is_not_tested() -> None:
    spoken_of = finding(0.6, p=0.04)
    silent = dataclasses.replace(
        finding(0.99, p=1e-9, head=1), applies=False, reasons=(Reason(ReasonKind.NOT_COVERED, "not saturated"),)
    )
    judged = judge([spoken_of, silent])
    assert [f.verdict for f in judged] == [Verdict.PARTLY_SUPPORTED, Verdict.NOT_APPLICABLE]
    assert judged[1].value == 0.99
    assert math.isnan(judged[1].p_value)
    [summary] = summarise(judged)
    assert (summary.measured, summary.verdict) == (1, f"{Verdict.PARTLY_SUPPORTED} in the only head judged")
    assert summary.median == 0.6, "the median is over the heads that the claim applies to"
    # Control: if it were tested, it would be judged and would not change the other p-value.
    assert judge([dataclasses.replace(silent, applies=True)])[0].verdict is Verdict.SUPPORTED


def test_heads_that_the_theory_does_not_cover_do_not_count_in_the_adjustment() -> None:
    doubtful = [dataclasses.replace(finding(0.6, p=0.9, head=h), applies=False) for h in range(1, 9)]
    assert judge([finding(0.6, p=0.04), *doubtful])[0].verdict is Verdict.PARTLY_SUPPORTED
    tested = [dataclasses.replace(f, applies=True) for f in doubtful]
    assert judge([finding(0.6, p=0.04), *tested])[0].verdict is Verdict.NO_EVIDENCE


def test_a_summary_holds_medians_over_measured_heads() -> None:
    values = [0.1, 0.9, 0.35, 0.4, 0.95, 0.2, 0.33]
    given = [finding(v, chance=0.2 + 0.01 * i, head=i) for i, v in enumerate(values)]
    gone = [finding(math.nan, inputs=0, chance=math.nan, head=7), finding(0.0, inputs=0, chance=0.0, head=8)]
    (summary,) = summarise(judge([*given, *gone]))
    assert summary.median == 0.35
    assert summary.controls == pytest.approx({"drawn": 0.23})
    assert (summary.interval.low, summary.interval.high) == (0.1, 0.95)
    assert (summary.heads, summary.measured) == (9, 7)
    assert sum(summary.verdicts.values()) == 9


def test_there_is_one_summary_for_each_claim_in_order() -> None:
    summaries = summarise(judge([finding(claim=LOWER), finding(), finding(head=1, claim=LOWER)]))
    assert [(s.claim, s.heads) for s in summaries] == [(LOWER, 2), (CLAIM, 1)]


def test_there_is_no_median_without_measured_heads() -> None:
    (summary,) = summarise(judge([finding(math.nan, inputs=0)]))
    assert math.isnan(summary.median)
    assert math.isnan(summary.interval.low)
    assert summary.verdict == str(Verdict.NOT_APPLICABLE)
    assert summarise([]) == []


def test_a_summary_counts_the_heads_of_its_verdict() -> None:
    above = [finding(0.5), finding(0.5, head=1)]
    below, gone = finding(0.2, head=2), finding(math.nan, inputs=0, head=3)
    assert summarise(judge([*above, gone]))[0].verdict == str(Verdict.PARTLY_SUPPORTED)
    assert summarise(judge([*above, below, gone]))[0].verdict == f"{Verdict.PARTLY_SUPPORTED} in 2 of 3 heads"


@pytest.mark.parametrize("heads", [6, 7, 23])
def test_the_interval_of_the_median_has_its_nominal_coverage(heads: int) -> None:
    """Coverage for a skewed distribution; the next narrower interval is the control."""
    draws, true = 499, math.log(2)
    ordered = np.sort(np.random.default_rng(heads).standard_exponential((draws, heads)), axis=1)
    intervals = [summarise([finding(v) for v in row])[0].interval for row in ordered.tolist()]
    covered = np.mean([i.low <= true <= i.high for i in intervals])
    place = ordered[0].tolist().index(intervals[0].low)
    narrower = np.mean((ordered[:, place + 1] <= true) & (true <= ordered[:, heads - 2 - place]))
    assert narrower < 0.95 - math.sqrt(0.05 * 0.95 / draws)
    assert covered > 0.95 - 2 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("heads", [1, 5])
def test_too_few_heads_have_no_interval_of_the_median(heads: int) -> None:
    """The range of five values misses the median in 2 of 2^5 cases, which is more than 5 %."""
    (summary,) = summarise([finding(0.1 * i, head=i) for i in range(heads)])
    assert math.isfinite(summary.median)
    assert math.isnan(summary.interval.low)
    assert math.isnan(summary.interval.high)


def over_inputs(sample: np.ndarray) -> Finding:
    """Return a finding with the mean and Student's interval of a sample over inputs."""
    moments = RunningMoments((1,))
    for entry in sample:
        moments.add(np.array([entry]))
    low, high = moments.interval()
    made = finding(float(moments.mean[0]), inputs=len(sample))
    return dataclasses.replace(made, interval=Interval(float(low[0]), float(high[0])))


def test_the_baseline_head_is_compared_by_welchs_test() -> None:
    rng = np.random.default_rng(3)
    trained, before = rng.normal(0.5, 0.1, 23), rng.normal(0.45, 0.3, 17)
    (compared,) = with_baseline([over_inputs(trained)], [over_inputs(before)], seed=7)
    assert [c.name for c in compared.controls] == ["drawn", BASELINE]
    added = compared.controls[-1]
    assert added.value == pytest.approx(before.mean())
    assert added.p_value == pytest.approx(stats.ttest_ind(trained, before, equal_var=False).pvalue)
    assert added.p_value != pytest.approx(stats.ttest_ind(trained, before, equal_var=True).pvalue, rel=0.01)
    assert (added.draws, added.seed) == (1, 7)
    assert added.range == over_inputs(before).interval


def test_a_difference_from_the_baseline_shows_in_its_p_value_and_decides_nothing() -> None:
    rng = np.random.default_rng(5)
    same, changed, before = (over_inputs(rng.normal(mean, 0.05, 29)) for mean in (0.5, 0.7, 0.5))
    for head, moved in ((same, False), (changed, True)):
        (compared,) = with_baseline([head], [before], seed=0)
        assert (compared.controls[-1].p_value < 0.01) is moved
        assert verdict(compared) is verdict(head) is Verdict.PARTLY_SUPPORTED
        assert compared.closest_control == head.closest_control
        assert compared.p_value == head.p_value
        (summary,) = summarise([compared])
        assert summary.decisive == tuple(control_result.name for control_result in head.controls)
        assert BASELINE in summary.controls


def test_baseline_heads_are_matched_by_head_and_claim() -> None:
    heads = [finding(0.5, head=h, claim=claim) for claim in (CLAIM, LOWER) for h in range(3)]
    before = [dataclasses.replace(f, value=0.1 + 0.01 * i) for i, f in enumerate(heads)]
    compared = with_baseline(heads, reversed(before), seed=0)
    assert [f.controls[-1].value for f in compared] == [f.value for f in before]
    assert [f.head for f in compared] == [f.head for f in heads]


def test_heads_without_a_counterpart_or_true_by_construction_get_no_baseline() -> None:
    alone = finding(head=5)
    certain = dataclasses.replace(finding(), verdict=Verdict.TRUE_BY_CONSTRUCTION)
    assert with_baseline([alone, certain], [finding()], seed=0) == [alone, certain]


def test_a_baseline_head_without_a_value_is_ignored() -> None:
    nothing = dataclasses.replace(finding(math.nan, inputs=0), interval=Interval(math.nan, math.nan))
    (compared,) = with_baseline([finding(p=0.02)], [nothing], seed=0)
    assert compared.p_value == pytest.approx(0.02)


def test_a_summary_has_the_median_of_each_control_and_of_the_predicted_values() -> None:
    by_input = dataclasses.replace(CLAIM, predicted=None)
    easy, hard = (0.1, 0.2, 0.4, math.nan, 0.3), (0.5, 0.6, math.nan, 0.7, 0.8)
    exact = (1.0, 2.0, math.nan, 4.0, 5.0)
    given = [
        finding(
            0.9,
            head=h,
            claim=by_input,
            predicted=exact[h],
            controls=(control(e, 0.1, name="easy"), control(d, 0.1, name="hard")),
        )
        for h, (e, d) in enumerate(zip(easy, hard, strict=True))
    ]
    gone = finding(
        math.nan, inputs=0, head=5, claim=by_input, predicted=99.0, controls=(control(99.0, 0.1, name="easy"),)
    )
    (summary,) = summarise([*given, gone])
    assert summary.controls == pytest.approx({"easy": 0.25, "hard": 0.65})
    assert summary.predicted == pytest.approx(3.0)


def test_a_control_without_any_value_has_no_median() -> None:
    (summary,) = summarise([finding(controls=(control(math.nan, math.nan, name="gone"),), predicted=math.nan)])
    assert math.isnan(summary.controls["gone"])
    assert math.isnan(summary.predicted)


@pytest.mark.parametrize(
    ("exact", "controls", "value", "expected"),
    [
        (70, (65,), 69.8, Verdict.SUPPORTED),
        (70, (65,), 67, Verdict.PARTLY_SUPPORTED),
        (70, (65,), 120, Verdict.PARTLY_SUPPORTED),
        (10, (60, 30), 9.9, Verdict.SUPPORTED),
        (10, (60, 30), 100, Verdict.CONTRADICTED),
        (10, (3, 60), 100, Verdict.NO_EVIDENCE),
        (0.2, (0.3,), 0.9, Verdict.CONTRADICTED),
        (0.2, (0.3,), 0.1, Verdict.PARTLY_SUPPORTED),
        (math.nan, (0.3,), 0.9, Verdict.UNDECIDED),
    ],
)
def test_a_value_that_can_exceed_the_prediction_must_stay_close_to_it(
    exact: float, controls: tuple[float, ...], value: float, expected: Verdict
) -> None:
    claim = dataclasses.replace(CLAIM, predicted=None)
    base = finding(float(value), claim=claim, predicted=float(exact))
    (control_result,) = base.controls[:1]
    made = dataclasses.replace(
        base,
        interval=Interval(value - 1e-3, value + 1e-3),
        controls=tuple(
            dataclasses.replace(control_result, name=str(c), value=float(c), p_value=1e-9) for c in controls
        ),
    )
    assert verdict(made) is expected


def measured_control(value: float, error: float, *, of: float, name: str = "drawn") -> ControlResult:
    """Return a control with the p-value that a head of the value `of` has by Student's test."""
    p = 2 * float(stats.t.sf(abs(of - value) / error, 28))
    return dataclasses.replace(control(value, p, name=name), error=error, freedom=28)


def test_statistics_as_published_are_not_judged() -> None:
    published = dataclasses.replace(CLAIM, role=Role.PUBLISHED)
    assert verdict(finding(0.99, claim=published)) is Verdict.NOT_JUDGED
    assert verdict(finding(0.99)) is Verdict.SUPPORTED


def test_a_claim_without_its_baseline_is_undecided() -> None:
    reason = Reason(ReasonKind.NO_BASELINE, "no baseline")
    assert verdict(dataclasses.replace(finding(0.99), reasons=(reason,))) is Verdict.UNDECIDED
    other = Reason(ReasonKind.TOO_SHORT, "some inputs were too short")
    assert verdict(dataclasses.replace(finding(0.99), reasons=(other,))) is Verdict.SUPPORTED


def test_heads_that_share_a_number_are_tested_once() -> None:
    """Four query heads of one key head, and 40 other heads: as four tests of 44 the number would seem significant."""
    shared = [dataclasses.replace(finding(p=0.004, head=head), shared=4) for head in range(4)]
    others = [finding(p=float(p), head=head) for head, p in enumerate(np.linspace(0.5, 0.9, 40), start=4)]
    judged = judge([*shared, *others])
    assert [f.adjusted_p_value for f in judged[:4]] == pytest.approx([0.004 * 41] * 4)
    assert {f.verdict for f in judged} == {Verdict.NO_EVIDENCE}
    apart = judge([*(dataclasses.replace(f, shared=1) for f in shared), *others])
    assert apart[0].verdict is not Verdict.NO_EVIDENCE


def test_the_prediction_of_each_input_is_subtracted_from_its_value() -> None:
    """Values that equal predictions which vary between inputs agree exactly, although both have wide intervals."""
    claim = dataclasses.replace(CLAIM, predicted=None)
    exact = dataclasses.replace(finding(0.7, half=0.3, claim=claim, predicted=0.7), deviation=Interval(-1e-11, 1e-11))
    assert exact.agreement_interval.low == pytest.approx(1)
    assert verdict(exact) is Verdict.SUPPORTED
    assert verdict(dataclasses.replace(exact, deviation=None)) is Verdict.PARTLY_SUPPORTED


@pytest.mark.parametrize(
    ("value", "controls", "kind"),
    [
        (0.31, [(0.3, 0.02)], NoEvidence.EQUIVALENT),
        (0.31, [(0.3, 0.3)], NoEvidence.TOO_LITTLE_POWER),
        (0.4, [(0.3, 0.01), (0.5, 0.01)], NoEvidence.BETWEEN),
        (0.4, [(0.3, 0.01), (0.405, 0.01)], NoEvidence.EQUIVALENT),
    ],
)
def test_kinds_of_no_evidence(value: float, controls: list[tuple[float, float]], kind: NoEvidence) -> None:
    made = tuple(
        measured_control(level, error, of=value, name=f"control {index}")
        for index, (level, error) in enumerate(controls)
    )
    (judged,) = judge([finding(value, controls=made)])
    assert (judged.verdict, judged.no_evidence) == (Verdict.NO_EVIDENCE, kind)
    (summary,) = summarise([judged])
    assert summary.no_evidence == {kind: 1}


@pytest.mark.parametrize("direction", [None, Direction.HIGHER])
def test_the_detectable_strength_is_where_the_verdict_changes(direction: Direction | None) -> None:
    claim = CLAIM if direction is None else dataclasses.replace(CLAIM, predicted=None, direction=direction)
    span = 0.6 if direction is None else 1.0

    def judged(value: float, heads: int = 3) -> Finding:
        controls = (measured_control(0.4, 0.05, of=value), measured_control(0.1, 0.2, of=value, name="wide"))
        first = dataclasses.replace(finding(value, claim=claim, predicted=1.0, controls=controls))
        others = [finding(0.3, p=0.9, head=h, claim=claim, predicted=1.0) for h in range(1, heads)]
        return judge([first, *others])[0]

    least = judged(0.5).detectable
    assert 0 < least < 1
    assert judged(0.4 + span * (least - 0.001)).verdict is Verdict.NO_EVIDENCE
    assert judged(0.4 + span * (least + 0.001)).verdict is not Verdict.NO_EVIDENCE
    assert judged(0.5, heads=1).detectable < least, "fewer heads need less"
