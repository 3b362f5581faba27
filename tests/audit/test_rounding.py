"""Differences that arithmetic does not resolve are ties, and verdicts that rounding could change are borderline."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from clearhead.audit.baseline import BASELINE, with_baseline
from clearhead.audit.findings import Finding, NoEvidence, Verdict
from clearhead.audit.judging import judge, summarise
from clearhead.audit.results import claim_findings
from clearhead.audit.rounding import ROUNDING, move_by_rounding
from clearhead.numerics.moments import Array, difference_p_value
from clearhead.numerics.precision import machine_epsilon, resolution
from clearhead.report.wording import evidence
from clearhead.theories.sums import Sums
from clearhead.theories.theory import Control, Direction, Sample
from tests.audit.synthetic_findings import CLAIM

INPUTS, DRAWS = 7, 5
DRAWN, OTHER, FIXED = Control(name="drawn"), Control(name="other"), Control(name="fixed", fixed=True)
HIGHER = dataclasses.replace(CLAIM, predicted=None, direction=Direction.HIGHER)
EPS = machine_epsilon(torch.float32)


def noise(*shape: int, size: float, seed: int = 1) -> Array:
    return size * np.random.default_rng(seed).standard_normal(shape)


def sums(
    differences: Array, *, control: Control = DRAWN, value: float = 0.5, size: float = 0.0,
    others: Array | None = None, dtype: torch.dtype = torch.float32, spread: Array | None = None,
) -> Sums:  # fmt: skip
    """Return the sums of inputs whose values differ by these numbers from all draws of a control.

    others: differences from a second control; spread: of the values over inputs
    """
    result = Sums(1)
    for i, difference in enumerate(differences):
        x = value + (0.0 if spread is None else spread[i])
        controls = {control: np.full((DRAWS, 1), x - difference)}
        if others is not None:
            controls[OTHER] = np.full((DRAWS, 1), x - others[i])
        result.add(Sample(value=np.array([x]), controls=controls), dtype, size)
    return result


def found(result: Sums, claim=HIGHER) -> Finding:
    [finding] = judge(claim_findings(result, claim, 0, "attention", 0))
    return finding


VALUES = noise(INPUTS, size=0.1)
"""Of a head that varies over inputs."""


@pytest.mark.parametrize("control", [DRAWN, FIXED])
@pytest.mark.parametrize("size", [0.0, 0.4 * EPS])
def test_a_head_equal_to_its_control_has_no_evidence(control: Control, size: float) -> None:
    """The differences have one sign, which a test would call significant."""
    finding = found(sums(np.abs(noise(INPUTS, size=size)), control=control, spread=VALUES))
    assert (finding.p_value, finding.verdict, finding.no_evidence) == (1.0, Verdict.NO_EVIDENCE, NoEvidence.EQUAL)
    assert [tied.p_value for tied in finding.controls] == [1.0]
    assert not finding.borderline
    assert "equal to a control within rounding" in evidence(summarise([finding])[0])


@pytest.mark.parametrize("control", [DRAWN, FIXED])
def test_differences_that_arithmetic_resolves_are_tested(control: Control) -> None:
    differences = 100 * EPS * (1 + noise(INPUTS, size=0.1))
    draws = sums(differences, control=control, spread=VALUES)
    assert found(draws).no_evidence is not NoEvidence.EQUAL
    if control is DRAWN:
        assert found(draws).verdict is Verdict.SUPPORTED


def test_ties_on_some_inputs_count_as_zero() -> None:
    """One difference that is resolved among ties of the same sign is no evidence."""
    differences = np.full(INPUTS, EPS)
    differences[2] = 0.1
    finding = found(sums(differences, spread=VALUES))
    [control] = finding.controls
    assert control.difference == pytest.approx(0.1 / INPUTS)  # ties add nothing
    assert control.p_value == pytest.approx(difference_p_value(1.0, 1.0, INPUTS - 1))  # of one number among zeros
    assert finding.verdict is Verdict.NO_EVIDENCE


def test_a_tie_is_never_undecided() -> None:
    """Neither another control without spread nor a missing baseline make it so."""
    [tied] = with_baseline(
        claim_findings(
            sums(np.zeros(INPUTS), spread=VALUES, others=np.full(INPUTS, 0.25)), HIGHER, 0, "attention", 0
        ),
        [], seed=0, decisive=[HIGHER.theory],
    )  # fmt: skip
    assert math.isnan(tied.controls[1].p_value)
    assert tied.reasons
    [finding] = judge([tied])
    assert (finding.verdict, finding.p_value) == (Verdict.NO_EVIDENCE, 1.0)


def test_a_constant_difference_that_is_resolved_has_no_test() -> None:
    """Rounding noise around it is no spread, and no floor on the error makes it significant."""
    for difference in (0.25, 0.25 + noise(INPUTS, size=0.1 * EPS)):
        finding = found(sums(np.full(INPUTS, 0.0) + difference, spread=VALUES))
        assert (finding.verdict, math.isnan(finding.p_value)) == (Verdict.UNDECIDED, True)
        assert not finding.borderline


def test_draws_that_differ_by_rounding_alone_are_no_spread() -> None:
    """Fixed draws of one number on every input, as those of equal heads: the head is not tested by their rounding."""
    result = Sums(1)
    for i in range(INPUTS):
        draws = 0.25 + noise(DRAWS, 1, size=0.1 * EPS, seed=i)
        result.add(Sample(value=np.array([0.5]), controls={FIXED: draws}), torch.float32)
    finding = found(result)
    assert finding.controls[0].error > 0
    assert finding.verdict is Verdict.UNDECIDED


def test_the_resolution_depends_on_the_dtype_and_the_size() -> None:
    difference = np.full(INPUTS, 4e-4) * (1 + noise(INPUTS, size=0.1))
    assert found(sums(difference, dtype=torch.float32, spread=VALUES)).verdict is Verdict.SUPPORTED
    assert found(sums(difference, dtype=torch.bfloat16, spread=VALUES)).no_evidence is NoEvidence.EQUAL
    # A small share of a large whole, or a small difference of large numbers.
    small = 1e-3 * difference
    assert found(sums(small, value=1e-3, spread=1e-3 * VALUES)).verdict is Verdict.SUPPORTED
    assert found(sums(small, value=1e-3, spread=1e-3 * VALUES, size=1.0)).no_evidence is NoEvidence.EQUAL
    # Statistics are sums in double precision, also of tensors in double precision.
    assert resolution(torch.float64, 1.0) > 100 * machine_epsilon(torch.float64)


def test_merged_and_restored_sums_keep_ties_and_resolutions() -> None:
    differences = np.concatenate([np.full(3, EPS), np.full(4, 0.1) + noise(4, size=0.01)])
    whole = sums(differences, spread=VALUES)
    first, second = sums(differences[:3], spread=VALUES[:3]), sums(differences[3:], spread=VALUES[3:])
    first.merge(Sums.from_state(second.state()))
    for name in ("difference", "error", "resolution", "largest", "p_value"):
        assert getattr(found(first).controls[0], name) == pytest.approx(getattr(found(whole).controls[0], name))
    assert found(first).resolution == found(whole).resolution > 0


def with_p(p: float, *, head: int = 0, size: float = 0.1) -> Finding:
    """Return the unjudged finding of a head whose only p-value is this, by scaling its differences."""
    shape = noise(INPUTS, size=size)
    shape -= shape.mean()
    low, high = 0.0, 100.0 * size
    for _ in range(200):
        middle = (low + high) / 2
        [finding] = claim_findings(sums(shape + middle, spread=VALUES), HIGHER, 0, "attention", 0)
        low, high = (middle, high) if finding.p_value > p else (low, middle)
    return dataclasses.replace(finding, head=head)


@pytest.mark.parametrize("side", [1 - 1e-7, 1 + 1e-7])
def test_a_p_value_within_rounding_of_the_limit_is_borderline(side: float) -> None:
    [near] = judge([with_p(0.05 * side)])
    assert near.verdict is (Verdict.SUPPORTED if side < 1 else Verdict.NO_EVIDENCE)
    assert near.borderline
    assert "1 head is borderline" in evidence(summarise([near])[0])
    for far in (0.04, 0.06):
        assert not judge([with_p(far)])[0].borderline


def test_a_head_is_borderline_if_the_rounding_of_others_decides() -> None:
    """Adjusted p-values depend on all heads: 5% of one head is .05 only while the other counts."""
    first, second = with_p(0.05 * (1 - 1e-7)), with_p(0.02, head=1)
    assert [f.borderline for f in judge([first, second])] == [True, False]
    assert [f.borderline for f in judge([first, with_p(0.9, head=1)])] == [False, False]
    near = with_p(0.05 * (1 - 1e-7), head=1)
    assert [f.borderline for f in judge([with_p(0.03), near])] == [True, True]  # .06, or what the other has


@pytest.mark.parametrize("low", [0.9 - 1e-8, 0.9 + 1e-8, 0.8])
def test_an_interval_within_rounding_of_the_limit_is_borderline(low: float) -> None:
    result = sums(0.5 + noise(INPUTS, size=1e-3), spread=noise(INPUTS, size=1e-3))
    [finding] = claim_findings(result, CLAIM, 0, "attention", 0)
    null = finding.closest_control.value
    # A prediction such that the agreement of the interval's lower end is `low`.
    predicted = null + (finding.interval.low - null) / low
    [judged] = judge([dataclasses.replace(finding, claim=dataclasses.replace(CLAIM, predicted=predicted),
                                          predicted=predicted)])  # fmt: skip
    assert judged.verdict is (Verdict.SUPPORTED if low > 0.9 else Verdict.PARTLY_SUPPORTED)
    assert judged.borderline is (low > 0.85)


@pytest.mark.parametrize(("multiple", "borderline"), [(0.3, False), (0.9, True), (1.2, True), (100.0, False)])
def test_a_difference_near_its_resolution_could_be_a_tie(multiple: float, borderline: bool) -> None:
    size = multiple * float(resolution(torch.float32, 0.7)) * (1 + noise(INPUTS, size=0.05))
    finding = found(sums(size, value=0.7, spread=VALUES / 1000))
    assert finding.verdict is (Verdict.NO_EVIDENCE if multiple < 1 else Verdict.UNDECIDED if multiple < 2
                               else Verdict.SUPPORTED)  # fmt: skip
    assert finding.borderline is borderline


def test_a_baseline_equal_to_the_head_is_a_tie() -> None:
    [head] = claim_findings(sums(np.full(INPUTS, 0.1), spread=VALUES), HIGHER, 0, "attention", 0)
    head = dataclasses.replace(head, controls=())
    starts = [dataclasses.replace(head, value=head.value + change) for change in noise(DRAWS, size=0.3 * EPS)]
    still = [dataclasses.replace(f, interval=type(f.interval)(f.value, f.value)) for f in (head, *starts)]
    [finding] = judge(with_baseline(still[:1], still[1:], seed=0, decisive=[HIGHER.theory]))
    assert (finding.controls[0].name, finding.no_evidence) == (BASELINE, NoEvidence.EQUAL)


def test_moving_by_rounding_moves_values_and_spreads() -> None:
    finding = with_p(0.01)
    p_values = [move_by_rounding(finding, *signs).p_value for signs in ROUNDING]
    assert min(p_values) < finding.p_value < max(p_values)
    assert max(p_values) - min(p_values) < 1e-5
    assert len(set(p_values)) == len(ROUNDING)
