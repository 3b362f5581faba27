"""Properties of a finding: closest control, p-value, agreement; and when a theorem check holds."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.audit.findings import ControlResult, Finding, Verdict
from tests.audit.synthetic_findings import CLAIM, LOWER, control, finding


def test_agreement_is_zero_at_the_null_and_one_at_the_predicted_value() -> None:
    for claim in (CLAIM, LOWER):
        assert finding(0.3, claim=claim).agreement == pytest.approx(0)
        assert finding(claim.predicted, claim=claim).agreement == pytest.approx(1)
    assert finding(0.65).agreement == pytest.approx(0.5)
    assert finding(0.15, claim=LOWER).agreement == pytest.approx(0.5)
    assert finding(0.45, claim=LOWER).agreement == pytest.approx(-0.5)


def test_the_interval_of_the_agreement_is_scaled_like_the_value() -> None:
    upward, downward = (
        finding(0.65, half=0.07).agreement_interval,
        finding(0.15, half=0.03, claim=LOWER).agreement_interval,
    )
    assert (upward.low, upward.high) == pytest.approx((0.4, 0.6))
    assert (downward.low, downward.high) == pytest.approx((0.4, 0.6))


def test_agreement_is_undefined_where_the_null_equals_the_prediction() -> None:
    reached = finding(0.5, chance=1.0)
    assert math.isnan(reached.agreement)
    assert math.isnan(reached.agreement_interval.low)


def test_agreement_is_undefined_without_a_predicted_value() -> None:
    unknown = finding(0.5, predicted=math.nan)
    assert math.isnan(unknown.agreement)
    assert math.isnan(unknown.agreement_interval.high)


def test_agreement_uses_the_predicted_value_of_the_finding() -> None:
    by_input = dataclasses.replace(CLAIM, predicted=None)
    assert finding(0.4, claim=by_input, predicted=0.5).agreement == pytest.approx(0.5)
    assert finding(0.4, claim=by_input, predicted=0.4).agreement == pytest.approx(1)


LOW, HIGH = control(0.2, 0.01, name="low"), control(0.6, 0.01, name="high")
GONE = control(math.nan, math.nan, name="gone")


@pytest.mark.parametrize("order", [(LOW, HIGH, GONE), (GONE, HIGH, LOW)], ids=["low first", "low last"])
def test_the_closest_control_is_the_one_nearest_to_the_prediction(order: tuple[ControlResult, ...]) -> None:
    assert finding(0.7, controls=order).closest_control is HIGH
    assert finding(0.7, controls=order, claim=LOWER).closest_control is LOW
    assert finding(0.7, controls=order, predicted=0.3).closest_control is LOW
    assert finding(0.7, controls=order).agreement == pytest.approx((0.7 - 0.6) / (1 - 0.6))


def test_the_closest_control_does_not_depend_on_the_head() -> None:
    for value in (0.1, 0.21, 0.4, 0.59, 0.9):
        assert finding(value, controls=(LOW, HIGH)).closest_control is HIGH


def test_without_a_predicted_value_the_first_finite_control_is_used() -> None:
    assert finding(predicted=math.nan, controls=(GONE, LOW, HIGH)).closest_control is LOW


def test_a_finding_without_controls_has_no_null_value() -> None:
    bare = finding(controls=())
    assert (bare.closest_control.name, bare.closest_control.draws) == ("none", 0)
    assert math.isnan(bare.closest_control.value)
    assert math.isnan(bare.p_value)
    assert math.isnan(bare.agreement)
    assert finding(controls=(GONE,)).closest_control is GONE


p_values = st.floats(0, 1)
values = st.floats(-3, 3)
controls = st.lists(st.builds(control, values, p_values), min_size=1, max_size=5).map(tuple)


def above(finding: Finding) -> float:
    """Return the largest one-sided p-value, over controls, that the head lies above a control."""
    return max(c.p_value / 2 if finding.value > c.value else 1 - c.p_value / 2 for c in finding.controls)


def below(finding: Finding) -> float:
    """Return the same for lying below."""
    return max(c.p_value / 2 if finding.value < c.value else 1 - c.p_value / 2 for c in finding.controls)


@given(value=values, chance=values, p=p_values)
def test_with_one_control_the_p_value_is_the_controls(value: float, chance: float, p: float) -> None:
    assert finding(value, chance=chance, p=p).p_value == pytest.approx(1.0 if value == chance else p)


@given(value=values, controls=controls)
def test_the_p_value_is_never_smaller_than_the_largest_one_sided(
    value: float, controls: tuple[ControlResult, ...]
) -> None:
    made = finding(value, controls=controls)
    assert min(above(made), below(made)) <= made.p_value <= 1
    assert made.p_value >= max(c.p_value for c in controls) - 1e-12
    if not (all(value > c.value for c in controls) or all(value < c.value for c in controls)):
        assert made.p_value == pytest.approx(1), "some control lies on the other side, or where the head is"


@given(value=values, controls=controls, further=st.builds(control, values, p_values))
def test_one_more_control_never_lowers_the_p_value(
    value: float, controls: tuple[ControlResult, ...], further: ControlResult
) -> None:
    assert finding(value, controls=(*controls, further)).p_value >= finding(value, controls=controls).p_value - 1e-12


def test_a_head_between_two_controls_is_not_significant() -> None:
    between = finding(0.4, controls=(control(0.2, 1e-9), control(0.6, 1e-9)))
    beyond = finding(0.7, controls=(control(0.2, 1e-9), control(0.6, 1e-9)))
    assert between.p_value == pytest.approx(1)
    assert beyond.p_value == pytest.approx(1e-9)


def test_an_untestable_control_gives_no_p_value_and_one_without_a_value_is_ignored() -> None:
    assert math.isnan(finding(0.9, controls=(LOW, control(0.3, math.nan))).p_value)
    assert finding(0.9, controls=(LOW, GONE)).p_value == pytest.approx(0.01)
    assert math.isnan(finding(0.9, controls=(GONE,)).p_value)


def test_the_deciding_control_is_the_hardest_to_exceed_towards_the_theory() -> None:
    close, clear = control(0.55, 0.4, name="close"), control(0.6, 1e-6, name="clear")
    assert finding(0.7, controls=(clear, close)).deciding_control is close
    assert finding(0.7, controls=(clear, close)).p_value == close.p_value
    between = finding(0.4, controls=(LOW, HIGH))
    assert between.deciding_control is HIGH, "it lies below this control, whatever the others say"
    below = dataclasses.replace(finding(0.1, controls=(LOW, HIGH)), verdict=Verdict.CONTRADICTED)
    assert below.deciding_control is LOW


def test_without_a_test_the_closest_control_decides() -> None:
    untested = control(0.3, math.nan, name="untested")
    assert finding(0.5, controls=(untested,)).deciding_control is untested
    assert finding(0.5, controls=()).deciding_control.draws == 0
