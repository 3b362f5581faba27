"""Claims that predict only a direction, and claims on whole layers: verdicts and wording."""

import dataclasses
import io
import math

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from clearhead.audit.baseline import BASELINE, with_baseline
from clearhead.audit.findings import ControlResult, Finding, Verdict
from clearhead.audit.judging import judge, summarise
from clearhead.numerics.moments import Interval
from clearhead.report.grid import arrange, beyond_controls
from clearhead.report.terminal_tables import print_head_table
from clearhead.report.wording import MARKS, RULES, closest_control, evidence, headline, position
from clearhead.theories.theory import Direction, Unit
from tests.audit.synthetic_findings import CLAIM, control, finding

LESS = dataclasses.replace(CLAIM, statistic="change", predicted=None, direction=Direction.LOWER)
MORE = dataclasses.replace(LESS, statistic="growth", direction=Direction.HIGHER)
BY_LAYER = dataclasses.replace(LESS, statistic="density", unit=Unit.LAYER)


def one_sided(value: float, *chances: ControlResult, claim=LESS, head: int = 0, layer: int = 0) -> Finding:
    made = finding(value, claim=claim, predicted=math.nan, head=head, controls=chances)
    return dataclasses.replace(made, layer=layer)


LOW, HIGH = control(-0.2, 1e-9, name="low"), control(0.1, 1e-9, name="high")


@pytest.mark.parametrize("claim", [LESS, MORE])
@pytest.mark.parametrize("controls", [(LOW, HIGH), (HIGH, LOW)])
def test_a_head_beyond_every_control_is_supported_on_the_predicted_side(claim, controls) -> None:
    values = (-0.5, -0.1, 0.5)
    toward, away = Verdict.SUPPORTED, Verdict.CONTRADICTED
    expected = [toward, Verdict.NO_EVIDENCE, away] if claim is LESS else [away, Verdict.NO_EVIDENCE, toward]
    judged = judge([one_sided(value, *controls, claim=claim, head=h) for h, value in enumerate(values)])
    assert [f.verdict for f in judged] == expected
    assert [f.closest_control.name for f in judged] == ["low" if claim is LESS else "high"] * 3
    (summary,) = summarise(judged)
    assert closest_control(summary) == ("low" if claim is LESS else "high")
    assert beyond_controls(summary) == 1


def test_claims_with_a_direction_have_no_agreement() -> None:
    head = one_sided(-0.5, LOW, HIGH)
    assert math.isnan(head.agreement)
    assert math.isnan(head.predicted)
    with pytest.raises(ValueError, match="one of them"):
        dataclasses.replace(CLAIM, direction=Direction.LOWER)


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ((LOW,), Verdict.SUPPORTED),
        ((dataclasses.replace(LOW, p_value=0.06),), Verdict.NO_EVIDENCE),
        ((LOW, dataclasses.replace(HIGH, p_value=0.2)), Verdict.NO_EVIDENCE),
        ((LOW, dataclasses.replace(HIGH, p_value=0.2, decisive=False)), Verdict.SUPPORTED),
        ((dataclasses.replace(LOW, p_value=math.nan),), Verdict.UNDECIDED),
    ],
)
def test_one_control_that_does_not_differ_from_the_head_gives_no_evidence(chances, expected) -> None:
    assert judge([one_sided(-0.5, *chances)])[0].verdict is expected


def test_several_baselines_decide_if_the_theory_needs_them() -> None:
    head = one_sided(-0.5, LOW)
    several = [one_sided(value) for value in (-0.6, -0.4, -0.55)]
    for decisive, before, expected in (
        ((), several, Verdict.SUPPORTED),
        ((LESS.theory,), several, Verdict.NO_EVIDENCE),
        ((LESS.theory,), several[:1], Verdict.UNDECIDED),  # one draw does not show how draws differ
        (("other",), several, Verdict.SUPPORTED),
    ):
        (compared,) = judge(with_baseline([head], before, seed=0, decisive=decisive))
        assert compared.controls[-1].name == BASELINE
        assert compared.verdict is expected


def test_a_head_must_lie_outside_the_prediction_interval_of_one_more_draw() -> None:
    draws = [-0.6, -0.4, -0.55, -0.35, -0.5]
    head = without_spread(-1.0)
    (compared,) = with_baseline([head], map(without_spread, draws), seed=0, decisive=[LESS.theory])
    control_result = compared.controls[-1]
    apart = (-1.0 - np.mean(draws)) / (np.std(draws, ddof=1) * math.sqrt(1 + 1 / 5))
    assert control_result.p_value == pytest.approx(2 * stats.t.sf(abs(apart), 4))
    assert (control_result.value, control_result.draws, control_result.decisive) == (
        pytest.approx(np.mean(draws)),
        5,
        True,
    )
    # The standard error of the head's own mean is added, not the deviation over inputs.
    unsure = dataclasses.replace(head, interval=Interval(-1.4, -0.6))
    (compared,) = with_baseline([unsure], map(without_spread, draws), seed=0, decisive=[LESS.theory])
    error = 0.4 / stats.t.ppf(0.975, head.inputs - 1)
    spread = math.hypot(np.std(draws, ddof=1) * math.sqrt(1 + 1 / 5), error)
    assert compared.controls[-1].p_value == pytest.approx(2 * stats.t.sf(abs(-1.0 - np.mean(draws)) / spread, 4))


def test_one_more_draw_is_significant_at_the_nominal_rate() -> None:
    generator = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        value, *draws = generator.normal(size=6)
        (compared,) = with_baseline([without_spread(value)], map(without_spread, draws), seed=0, decisive=[LESS.theory])
        called += compared.controls[-1].p_value < 0.05
    assert 8 <= called <= 34  # 20 expected; the bounds are more than three standard deviations away


def test_the_baseline_of_a_layer_claim_is_named_a_layer() -> None:
    layer = one_sided(-0.5, LOW, claim=BY_LAYER)
    (compared,) = with_baseline([layer], [layer], seed=0)
    assert compared.controls[-1].name == "the same layer before training"


def without_spread(value: float) -> Finding:
    return dataclasses.replace(one_sided(value, LOW), interval=Interval(value, value))


@pytest.mark.parametrize(("before", "p"), [(1.0, 1.0), (0.5, math.nan)])
def test_p_values_of_numbers_without_variance(before: float, p: float) -> None:
    (compared,) = with_baseline([without_spread(1.0)], [without_spread(before)], seed=0)
    assert compared.controls[-1].p_value == pytest.approx(p, nan_ok=True)


def test_headlines_name_the_direction_and_the_unit() -> None:
    down, up = one_sided(-0.5, LOW, HIGH), one_sided(0.5, LOW, HIGH, head=1)
    (agreeing,) = summarise(judge([down]))
    (against,) = summarise(judge([up]))
    assert headline(agreeing) == "Theory is supported in the only head."
    assert headline(against) == "Theory is contradicted in the only head."
    for summary, value, level in ((agreeing, "-0.50", "-0.20 for low"), (against, "0.50", "0.10 for high")):
        assert evidence(summary) == (
            f"Change is {value} in the median head and {level}; the theory predicts a lower value than every control."
        )
    layers = [one_sided(-0.5, LOW, claim=BY_LAYER, layer=layer) for layer in range(3)]
    (summary,) = summarise(judge([*layers, one_sided(0.5, LOW, claim=BY_LAYER, layer=3)]))
    assert summary.verdict == f"{Verdict.SUPPORTED} in 3 of 4 layers"
    assert headline(summary) == "Theory is supported in 3 of 4 layers; contradicted in 1."
    assert "in the median layer" in evidence(summary)
    assert "head" not in evidence(summary)
    assert (position(layers[2]), position(up)) == ("Layer 2", "Layer 0, head 1")
    assert set(MARKS) == set(RULES) == set(Verdict)


def test_the_table_of_heads_shows_values_where_agreement_is_undefined() -> None:
    (grid,) = arrange(judge([one_sided(-0.51, LOW, HIGH), one_sided(0.52, LOW, HIGH, head=1)]))
    stream = io.StringIO()
    print_head_table(grid, Console(file=stream, width=90))
    text = stream.getvalue()
    assert "-.51*" in text
    assert ".52!" in text
    assert "change: the theory predicts lower values than every control" in text
    assert "agreement" not in text
