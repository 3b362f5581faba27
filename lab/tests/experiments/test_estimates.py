"""Estimates over seeds: against the intervals and tests of scipy, and on random runs without a difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clearhead_lab.experiments.estimates import (
    decimals,
    differences,
    estimate,
    mean_of,
    over_runs,
    plus_minus,
    significant,
    smallest_detectable,
)

ROUNDING = 1e-12


@given(st.integers(2, 11), st.integers(0, 2**32 - 1))
def test_the_interval_is_students_t_interval(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=count)
    result = estimate(list(values))
    assert result is not None
    assert result.interval is not None
    expected = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert (result.interval.low, result.interval.high) == pytest.approx(expected, rel=1e-9, abs=ROUNDING)
    assert (result.mean, result.count) == (pytest.approx(values.mean(), abs=ROUNDING), count)


def test_one_seed_has_no_interval_and_no_seeds_have_no_mean() -> None:
    alone = estimate([0.3])
    assert alone is not None
    assert (alone.mean, alone.interval) == (0.3, None)
    assert estimate([]) is None


def _measured(seed: int, *, shift: float, seeds: int = 5) -> dict[str, dict[str, dict[int, float]]]:
    """A variant and its baseline that share most of their chance."""
    generator = np.random.default_rng(seed)
    common = generator.normal(size=seeds)
    ours, theirs = (common + 0.01 * generator.normal(size=seeds) for _ in range(2))
    return {"clean": {"new": dict(enumerate(ours + shift)), "old": dict(enumerate(theirs))}}


def test_paired_differences_are_significant_despite_spread_over_seeds() -> None:
    measured = _measured(0, shift=0.1)
    [result] = differences(measured, [("new", "old")])
    values = [list(measured["clean"][name].values()) for name in ("new", "old")]
    assert result.adjusted == pytest.approx(stats.ttest_rel(*values).pvalue, rel=1e-9)
    assert result.verdict == "higher"
    assert stats.ttest_ind(*values).pvalue > 0.5
    [reversed_pair] = differences(measured, [("old", "new")])
    assert (reversed_pair.verdict, reversed_pair.estimate.mean) == ("lower", -result.estimate.mean)


def test_null_differences_are_significant_at_the_nominal_rate() -> None:
    found = [differences(_measured(seed, shift=0), [("new", "old")])[0] for seed in range(400)]
    missed = next(difference for difference in found if not difference.found)
    assert missed.words == f"not distinguishable (detectable {decimals(missed.detectable)})"
    verdicts = [difference.verdict for difference in found]
    # 20 of 400 are expected; 5 standard deviations above are 42.
    assert 5 <= sum(verdict != "not distinguishable" for verdict in verdicts) <= 42


def test_many_comparisons_share_one_error_rate() -> None:
    measured = {f"measure {i}": _measured(i, shift=0)["clean"] for i in range(400)}
    together = differences(measured, [("new", "old")])
    assert len(together) == 400
    assert sum(difference.verdict != "not distinguishable" for difference in together) <= 2
    alone = stats.false_discovery_control([stats.ttest_rel(
        *(list(measured[d.measure][name].values()) for name in ("new", "old"))).pvalue for d in together])  # fmt: skip
    assert [difference.adjusted for difference in together] == pytest.approx(list(alone), rel=1e-9)


def test_only_seeds_that_both_have_are_compared() -> None:
    measured = {"clean": {"new": {0: 0.5, 1: 0.7, 3: 0.8}, "old": {1: 0.4, 2: 0.0, 3: 0.6}, "lost": {0: 0.1}}}
    [result] = differences(measured, [("new", "old"), ("new", "lost"), ("new", "nothing")])
    assert result.by_seed == pytest.approx((0.3, 0.2))
    assert differences({}, [("new", "old")]) == []


def test_equal_differences_of_few_seeds_are_no_evidence() -> None:
    """Accuracies on 150 images, where both seeds differ by four images; rounding makes the spread 0 or tiny."""
    measured = {"a": {"new": {0: 40 / 150, 1: 37 / 150}, "old": {0: 44 / 150, 1: 41 / 150}}}
    [result] = differences(measured, [("new", "old")])
    assert (result.adjusted, result.detectable, result.verdict, result.found) == (None, None, "spread unknown", False)
    measured["a"]["new"] = {0: 40 / 150, 1: 36.999 / 150}
    [control] = differences(measured, [("new", "old")])
    assert (control.verdict, control.found, control.words) == ("lower", True, "lower")
    both = dict.fromkeys(("a", "b"), measured["a"]) | {"c": {name: {0: 0.5, 1: 0.5} for name in ("new", "old")}}
    found = differences(both, [("new", "old")])
    assert [item.verdict for item in found] == ["lower", "lower", "spread unknown"]
    assert found[0].adjusted == pytest.approx(1.5 * (control.adjusted or 0))  # it counts as a comparison


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_the_smallest_detectable_difference_is_found_in_four_of_five_repetitions(seeds: int) -> None:
    spread = [0.01 * (number % 2) for number in range(seeds)]
    smallest = smallest_detectable(spread)
    deviation = np.std(spread, ddof=1)
    repeated = np.random.default_rng(0).normal(smallest, deviation, size=(20_000, seeds))
    for shift, low, high in ((0, 0.79, 0.81), (-smallest, 0.045, 0.055)):
        found = stats.ttest_1samp(repeated + shift, 0, axis=1).pvalue <= 0.05
        assert low <= found.mean() <= high


def test_numbers_are_short_and_correct() -> None:
    assert [decimals(v) for v in (0.9934, 1.0, 0.9999, -0.25, 12.3456, 0.0, None)] == [
        ".993", "1.000", "1.000", "-.250", "12.346", ".000", "-",
    ]  # fmt: skip
    assert over_runs([None, None]) is None
    mean = over_runs([0.2, None, 0.4])
    assert mean == estimate([0.2, 0.4])
    assert (mean_of(mean), mean_of(None)) == (".300", "-")
    assert plus_minus(mean) == ".300 ± 1.271"
    assert plus_minus(over_runs([0.2])) == ".200"
    assert plus_minus(over_runs([380.0, 390.0])) == "385.0 ± 63.5"


def test_small_numbers_keep_significant_digits() -> None:
    assert significant(over_runs([1.23456e-7])) == "1.23e-07"
    # The interval of two numbers a and b is 12.706 |a - b| / 2 to both sides.
    assert significant(over_runs([1e-5, 3e-5])) == "2e-05 ± 0.00013"
    assert significant(None) == "-"
