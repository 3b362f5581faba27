"""What is kept of a stream of inputs, and the two ways of comparing a head with its controls."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from clearhead.audit.engine import Measurement
from clearhead.audit.findings import Finding
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import measure_by_head
from clearhead.theories.theory import Claim, Control, Sample, Samples, Theory

FIRST, SECOND = (
    Claim(
        theory="t", statistic=name, statement="", formula="", citation="", predicted=predicted, undefined=f"no {name}"
    )
    for name, predicted in (("first", 1.0), ("second", None))
)
ANEW, KEPT = Control(name="anew"), Control(name="kept", kept=True)
HEADS, DRAWS = 3, 5


def _stream(values: Array, anew: Array, kept: Array, *, batch: int = 1, windows: int = 1) -> list[Finding]:
    """Findings on inputs whose samples are given: values (n, h), draws (n, t, h)."""
    return _measured(values, anew, kept, batch=batch, windows=windows).findings()


def _theory(values: Array, anew: Array, kept: Array) -> Theory:
    """A theory whose sample of an input is looked up by the number that the input holds."""

    def measure(example: Example, rng: Random) -> Samples:
        i = int(example.q[0, 0, 0])
        first = Sample(value=values[i], controls={ANEW: anew[i], KEPT: kept[i]})
        return {FIRST: first, SECOND: Sample(value=values[i], controls={}, predicted=2 * values[i])}

    def applies(example: Example) -> Reason | None:
        return Reason(ReasonKind.TOO_SHORT, "negative") if float(example.q[0, 0, 0]) < 0 else None

    return Theory(key="t", title="t", claims=(FIRST, SECOND), measure=measure, applies=applies)


def _call(ids: Sequence[int], *, windows: int = 1, layer: int = 0) -> Heads:
    x = torch.tensor(ids, dtype=torch.float64)[:, None, None, None].expand(len(ids), HEADS, 1, 1)
    return Heads(layer=layer, name="a", q=x, k=x, v=x, out=x, scale=1.0, windows=windows)


def _measured(
    values: Array, anew: Array, kept: Array, *, batch: int = 1, windows: int = 1, inputs: range | None = None
) -> Measurement:
    measurement = Measurement(_theory(values, anew, kept))
    ids = list(inputs or range(len(values)))
    for first in range(0, len(ids), batch):
        measurement.observe(_call(ids[first : first + batch], windows=windows))
    return measurement


def _drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def test_draws_made_anew_are_compared_input_by_input() -> None:
    values, anew, kept = _drawn(11, HEADS), _drawn(11, DRAWS, HEADS, seed=1), _drawn(11, DRAWS, HEADS, seed=2)
    for h, finding in enumerate(_stream(values, anew, kept)[:HEADS]):
        expected = stats.ttest_1samp(values[:, h] - anew[:, :, h].mean(axis=1), 0).pvalue
        assert finding.value == pytest.approx(values[:, h].mean())
        assert finding.controls[0].p_value == pytest.approx(expected)
        assert finding.controls[0].value == pytest.approx(anew[:, :, h].mean())
        assert finding.controls[0].draws == DRAWS


def test_draws_that_are_kept_must_be_left_behind_as_a_whole() -> None:
    """A head that differs from the mean of the draws on every input, as each draw does, is one of them."""
    level = np.array([-1.0, -0.5, 0.2, 0.6, 1.0])
    kept = level[None, :, None] + 0.001 * _drawn(11, DRAWS, HEADS)
    values = np.array([0.8, 0.26, 30.0]) + 0.001 * _drawn(11, HEADS, seed=1)
    found = _stream(values, kept, kept)[:HEADS]
    inside, middle, outside = ({chance.name: chance.p_value for chance in finding.controls} for finding in found)
    assert inside["anew"] < 1e-6 < 0.2 < inside["kept"]
    assert middle["kept"] > 0.5
    assert outside["kept"] < 1e-3


def test_kept_draws_call_one_of_their_own_different_at_the_rate_promised() -> None:
    heads = 2000
    levels = _drawn(DRAWS + 1, heads)
    values, kept = np.repeat(levels[None, 0], 2, axis=0), np.repeat(levels[None, 1:], 2, axis=0)
    from clearhead.numerics.moments import prediction_p_value

    p = np.array([prediction_p_value(values[0, h], kept[0, :, h]) for h in range(heads)])
    assert abs((p <= 0.05).mean() - 0.05) < 4 * math.sqrt(0.05 * 0.95 / heads)
    assert prediction_p_value(1.0, np.ones(3)) == 1
    assert prediction_p_value(2.0, np.ones(3)) == 0


def test_the_exact_value_is_the_claims_or_the_mean_of_the_inputs() -> None:
    values = _drawn(7, HEADS)
    found = _stream(values, _drawn(7, DRAWS, HEADS), _drawn(7, DRAWS, HEADS))
    assert [f.predicted for f in found[:HEADS]] == [1.0] * HEADS
    assert [f.predicted for f in found[HEADS:]] == pytest.approx(list(2 * values.mean(axis=0)))
    assert all(f.controls == () for f in found[HEADS:])


def test_batches_and_windows() -> None:
    parts = _drawn(12, HEADS), _drawn(12, DRAWS, HEADS, seed=1), _drawn(12, DRAWS, HEADS, seed=2)
    one, many = _stream(*parts), _stream(*parts, batch=4)
    for a, b in zip(one, many, strict=True):
        assert (a.value, a.inputs) == pytest.approx((b.value, b.inputs))
    windows = _stream(*parts, batch=4, windows=2)
    means = _stream(*(part.reshape(6, 2, *part.shape[1:]).mean(axis=1) for part in parts))
    for a, b in zip(windows, means, strict=True):
        assert a.inputs == b.inputs == 6
        assert a.value == pytest.approx(b.value)
        for c, d in zip(a.controls, b.controls, strict=True):
            assert c.p_value == pytest.approx(d.p_value)


def test_a_value_that_is_not_a_number_counts_nowhere() -> None:
    values, draws = _drawn(7, HEADS), _drawn(7, DRAWS, HEADS, seed=1)
    values[2, 1] = np.nan
    found, without = (
        _stream(values, draws, draws)[1],
        _stream(*(np.delete(x, 2, axis=0) for x in (values, draws, draws)))[1],
    )
    assert (found.inputs, found.skipped, found.reason) == (6, 1, "no first")
    assert found.value == pytest.approx(without.value)
    assert [c.value for c in found.controls] == pytest.approx([c.value for c in without.controls])


def test_a_window_without_a_number_leaves_the_others() -> None:
    values, draws = _drawn(8, HEADS), _drawn(8, DRAWS, HEADS, seed=1)
    values[2] = np.nan
    found = _stream(values, draws, draws, batch=4, windows=2)[0]
    assert found.inputs == 4
    assert found.value == pytest.approx(
        np.mean([values[:2, 0].mean(), values[3, 0], *values[4:, 0].reshape(2, 2).mean(1)])
    )


def test_a_value_beyond_all_numbers_counts_nowhere(recwarn: pytest.WarningsRecorder) -> None:
    values, draws = _drawn(7, HEADS), _drawn(7, DRAWS, HEADS, seed=1)
    values[2, 1], draws[2, :, 1] = np.inf, np.inf
    found = _stream(values, draws, draws)[1]
    assert (found.inputs, found.skipped, found.reason) == (6, 1, "no first")
    assert not recwarn.list


def test_one_input_decides_nothing() -> None:
    found = _stream(_drawn(1, HEADS), _drawn(1, DRAWS, HEADS), _drawn(1, DRAWS, HEADS))[0]
    assert all(math.isnan(chance.p_value) for chance in found.controls)
    assert math.isnan(found.p_value)


def test_heads_on_their_own_tokens_are_joined() -> None:
    tokens = torch.tensor([[True, True, False], [True, False, False]])

    def measure(part: slice, seen: torch.Tensor) -> dict[Claim, Sample]:
        count = np.array([float(seen.sum())])
        return {FIRST: Sample(value=count, controls={ANEW: np.stack([count, -count])}, predicted=10 * count)}

    joined = measure_by_head(tokens, measure)[FIRST]
    assert joined.value.tolist() == [2, 1]
    assert joined.controls[ANEW].tolist() == [[2, 1], [-2, -1]]
    assert joined.predicted is not None
    assert joined.predicted.tolist() == [20, 10]
