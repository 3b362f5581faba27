import dataclasses
import math

import numpy as np
import pytest

from clearhead.findings import SUPPORT, Chance, Claim, Finding, Theorem, Verdict, judge, summarise
from clearhead.numerics.moments import Interval, RunningMoments

CLAIM = Claim(theory="theory", statistic="share", statement="it is one", formula="s = 1", citation="someone", exact=1.0)
LOWER = dataclasses.replace(CLAIM, statistic="residual", statement="it is none", formula="r = 0", exact=0.0)


def finding(
    value: float = 0.5,
    *,
    p: float = 1e-9,
    half: float = 0.01,
    chance: float = 0.3,
    inputs: int = 29,
    head: int = 0,
    claim: Claim = CLAIM,
) -> Finding:
    return Finding(
        claim=claim,
        layer=0,
        name="attention",
        head=head,
        value=value,
        interval=Interval(value - half, value + half),
        chance=Chance(value=chance, range=Interval(chance - 0.1, chance + 0.1), control="drawn", draws=19, seed=0),
        p_value=p,
        inputs=inputs,
    )


def verdict(given: Finding) -> Verdict:
    return judge([given])[0].verdict


def test_agreement_is_zero_at_chance_and_one_at_the_theory() -> None:
    for claim in (CLAIM, LOWER):
        assert finding(0.3, claim=claim).agreement == pytest.approx(0)
        assert finding(claim.exact, claim=claim).agreement == pytest.approx(1)
    assert finding(0.65).agreement == pytest.approx(0.5)
    assert finding(0.15, claim=LOWER).agreement == pytest.approx(0.5)
    assert finding(0.45, claim=LOWER).agreement == pytest.approx(-0.5)


def test_the_interval_of_the_agreement_follows_its_scale() -> None:
    upward, downward = (
        finding(0.65, half=0.07).agreement_interval,
        finding(0.15, half=0.03, claim=LOWER).agreement_interval,
    )
    assert (upward.low, upward.high) == pytest.approx((0.4, 0.6))
    assert (downward.low, downward.high) == pytest.approx((0.6, 0.4))


def test_there_is_no_agreement_where_chance_reaches_the_theory() -> None:
    reached = finding(0.5, chance=1.0)
    assert math.isnan(reached.agreement)
    assert math.isnan(reached.agreement_interval.low)
    assert verdict(reached) is Verdict.BELOW


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (finding(0.99), Verdict.SUPPORTED),
        (finding(0.99, half=0.2), Verdict.ABOVE),
        (finding(0.5), Verdict.ABOVE),
        (finding(0.2), Verdict.BELOW),
        (finding(0.99, p=0.06), Verdict.CHANCE),
        (finding(0.99, p=0.05), Verdict.SUPPORTED),
        (finding(math.nan), Verdict.NOT_APPLICABLE),
        (finding(0.99, inputs=0), Verdict.NOT_APPLICABLE),
        (finding(0.99, inputs=1, p=math.nan), Verdict.UNDECIDED),
        (finding(0.01, claim=LOWER), Verdict.SUPPORTED),
        (finding(0.01, claim=LOWER, half=0.1), Verdict.ABOVE),
        (finding(0.2, claim=LOWER), Verdict.ABOVE),
        (finding(0.5, claim=LOWER), Verdict.BELOW),
        (dataclasses.replace(finding(0.2), verdict=Verdict.BY_CONSTRUCTION), Verdict.BY_CONSTRUCTION),
    ],
)
def test_verdicts(given: Finding, expected: Verdict) -> None:
    assert verdict(given) is expected


def test_support_needs_the_whole_interval() -> None:
    least = 0.3 + SUPPORT * 0.7
    assert verdict(finding(least + 0.0101)) is Verdict.SUPPORTED
    assert verdict(finding(least + 0.0099)) is Verdict.ABOVE


def test_judging_changes_nothing_but_the_verdict_and_keeps_the_order() -> None:
    given = [finding(0.1 * i, head=i, claim=(CLAIM, LOWER)[i % 2]) for i in range(7)]
    judged = judge(iter(given))
    assert [dataclasses.replace(f, verdict=Verdict.UNDECIDED) for f in judged] == given
    assert all(f.verdict is not Verdict.UNDECIDED for f in judged)


def test_many_heads_raise_the_bar_within_a_claim_and_not_across_claims() -> None:
    lucky = finding(p=0.02)
    idle = [finding(p=0.9, head=i) for i in range(1, 11)]
    elsewhere = [dataclasses.replace(f, claim=LOWER) for f in idle]
    assert judge([lucky])[0].verdict is Verdict.ABOVE
    assert judge([lucky, *elsewhere])[0].verdict is Verdict.ABOVE
    assert judge([lucky, *idle])[0].verdict is Verdict.CHANCE
    assert judge([lucky, *idle], rate=0.3)[0].verdict is Verdict.ABOVE


def test_heads_that_could_not_be_measured_do_not_raise_the_bar() -> None:
    gone = [finding(math.nan, p=math.nan, inputs=0, head=i) for i in range(1, 11)]
    assert judge([finding(p=0.02), *gone])[0].verdict is Verdict.ABOVE


def measured(rng: np.random.Generator, *, heads: int, real: int, inputs: int = 17) -> list[Finding]:
    """Findings as a theory makes them, from drawn differences to chance; the first `real` heads do differ."""
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


def test_false_discoveries_are_held_to_the_rate_and_without_adjustment_are_not() -> None:
    rng = np.random.default_rng(5)
    shares, crude = [], []
    for _ in range(97):
        judged = judge(measured(rng, heads=47, real=5))
        found = [f.head for f in judged if f.verdict is not Verdict.CHANCE]
        naive = [f.head for f in judged if f.p_value <= 0.05]
        shares.append(sum(h >= 5 for h in found) / max(len(found), 1))
        crude.append(sum(h >= 5 for h in naive) / max(len(naive), 1))
        assert set(range(5)) <= set(found)
    assert np.mean(shares) < 0.06
    assert np.mean(crude) > 0.15


def test_a_summary_is_of_medians_over_measured_heads() -> None:
    values = [0.1, 0.9, 0.35, 0.4, 0.95, 0.2, 0.33]
    given = [finding(v, chance=0.2 + 0.01 * i, head=i) for i, v in enumerate(values)]
    gone = [finding(math.nan, inputs=0, chance=math.nan, head=7), finding(0.0, inputs=0, chance=0.0, head=8)]
    (summary,) = summarise(judge([*given, *gone]))
    assert summary.median == 0.35
    assert summary.chance == pytest.approx(0.23)
    assert (summary.chance_range.low, summary.chance_range.high) == pytest.approx((0.13, 0.33))
    assert (summary.interval.low, summary.interval.high) == (0.1, 0.95)
    assert (summary.heads, summary.measured) == (9, 7)
    assert sum(summary.verdicts.values()) == 9


def test_summaries_come_one_for_each_claim_in_order() -> None:
    summaries = summarise(judge([finding(claim=LOWER), finding(), finding(head=1, claim=LOWER)]))
    assert [(s.claim, s.heads) for s in summaries] == [(LOWER, 2), (CLAIM, 1)]


def test_nothing_measured_has_no_median() -> None:
    (summary,) = summarise(judge([finding(math.nan, inputs=0)]))
    assert math.isnan(summary.median)
    assert math.isnan(summary.interval.low)
    assert summary.verdict == str(Verdict.NOT_APPLICABLE)
    assert summarise([]) == []


def test_a_summary_says_how_many_heads_share_its_verdict() -> None:
    above, below, gone = finding(0.5), finding(0.2), finding(math.nan, inputs=0)
    assert summarise(judge([above, above, gone]))[0].verdict == str(Verdict.ABOVE)
    assert summarise(judge([above, above, below, gone]))[0].verdict == f"{Verdict.ABOVE} in 2 of 3 heads"


@pytest.mark.parametrize("heads", [6, 7, 23])
def test_the_interval_of_the_median_covers_it_as_often_as_it_says(heads: int) -> None:
    """Of a skewed law; the interval one order statistic narrower on either side is the control."""
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
    """The range of five values misses the median in 2 of 2^5 cases, more than 5 %."""
    (summary,) = summarise([finding(0.1 * i, head=i) for i in range(heads)])
    assert math.isfinite(summary.median)
    assert math.isnan(summary.interval.low)
    assert math.isnan(summary.interval.high)


THEOREM = Theorem(
    source="someone",
    statement="left equals right",
    residual=1e-15,
    residual_single=1e-7,
    tolerance=1e-13,
    tolerance_single=1e-5,
    control="left with a wrong index",
    control_residual=0.1,
    citation="section 1",
)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"residual": 1e-12}, False),
        ({"residual_single": 1e-4}, False),
        ({"control_residual": 1e-4}, False),
        ({"residual": math.nan}, False),
        ({"control_residual": math.nan}, False),
    ],
    ids=str,
)
def test_a_theorem_holds_if_its_residuals_are_small_and_its_control_is_not(change: dict, holds: bool) -> None:
    assert dataclasses.replace(THEOREM, **change).holds is holds
