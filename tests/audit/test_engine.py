"""The engine: sums over inputs, two kinds of controls, merging and saving."""

import dataclasses
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from clearhead.audit.findings import Finding
from clearhead.audit.state_file import read_state, write_state
from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.theories import kernel_pca, symmetry
from clearhead.theories.example import Example, Random
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import measure_by_head
from clearhead.theories.theory import Claim, Control, Sample, Samples, Theory
from tests.measured import Measured

FIRST, SECOND = (
    Claim(
        theory="t", statistic=name, statement="", formula="", citation="", predicted=predicted, undefined=f"no {name}"
    )
    for name, predicted in (("first", 1.0), ("second", None))
)
PER_INPUT, FIXED = Control(name="per input"), Control(name="fixed", fixed=True)
HEADS, DRAWS = 3, 5


def _stream(values: Array, per_input: Array, fixed: Array, *, batch: int = 1, windows: int = 1) -> list[Finding]:
    """Return findings for given samples of each input: values (n, h), draws (n, t, h)."""
    return _measured(values, per_input, fixed, batch=batch, windows=windows).findings()


def _theory(values: Array, per_input: Array, fixed: Array) -> Theory:
    """A theory that looks up the sample of an input by a number in the input."""

    def measure(example: Example, rng: Random) -> Samples:
        i = int(example.q[0, 0, 0])
        first = Sample(value=values[i], controls={PER_INPUT: per_input[i], FIXED: fixed[i]})
        return {FIRST: first, SECOND: Sample(value=values[i], controls={}, predicted=2 * values[i])}

    def applies(example: Example) -> Reason | None:
        return Reason(ReasonKind.TOO_SHORT, "negative") if float(example.q[0, 0, 0]) < 0 else None

    return Theory(key="t", title="t", claims=(FIRST, SECOND), measure=measure, applies=applies)


def _call(ids: Sequence[int], *, windows: int = 1, layer: int = 0) -> Heads:
    x = torch.tensor(ids, dtype=torch.float64)[:, None, None, None].expand(len(ids), HEADS, 1, 1)
    return Heads(layer=layer, name="a", q=x, k=x, v=x, out=x, scale=1.0, windows=windows)


def _measured(
    values: Array, per_input: Array, fixed: Array, *, batch: int = 1, windows: int = 1, inputs: range | None = None
) -> Measured:
    measurement = Measured(_theory(values, per_input, fixed))
    ids = list(inputs or range(len(values)))
    for first in range(0, len(ids), batch):
        measurement.feed(_call(ids[first : first + batch], windows=windows))
    return measurement


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def test_draws_of_each_input_are_compared_input_by_input() -> None:
    values, per_input, fixed = _normal(11, HEADS), _normal(11, DRAWS, HEADS, seed=1), _normal(11, DRAWS, HEADS, seed=2)
    for h, finding in enumerate(_stream(values, per_input, fixed)[:HEADS]):
        expected = stats.ttest_1samp(values[:, h] - per_input[:, :, h].mean(axis=1), 0).pvalue
        assert finding.value == pytest.approx(values[:, h].mean())
        assert finding.controls[0].p_value == pytest.approx(expected)
        assert finding.controls[0].value == pytest.approx(per_input[:, :, h].mean())
        assert finding.controls[0].draws == DRAWS


def test_a_head_must_lie_outside_the_spread_of_fixed_draws() -> None:
    """A head that differs from the draws' mean as much as single draws do is not significant."""
    level = np.array([-1.0, -0.5, 0.2, 0.6, 1.0])
    fixed = level[None, :, None] + 0.001 * _normal(11, DRAWS, HEADS)
    values = np.array([0.8, 0.26, 30.0]) + 0.001 * _normal(11, HEADS, seed=1)
    result = _stream(values, fixed, fixed)[:HEADS]
    inside, middle, outside = ({control.name: control.p_value for control in finding.controls} for finding in result)
    assert inside["per input"] < 1e-6 < 0.2 < inside["fixed"]
    assert middle["fixed"] > 0.5
    assert outside["fixed"] < 1e-3


def test_fixed_draws_are_compared_with_the_head_on_the_inputs_that_have_them() -> None:
    """Draws are missing where the head's value is another: its mean over all inputs would be significant."""
    fixed = np.array([-1.0, -0.5, 0.2, 0.6, 1.0])[None, :, None] + 0.001 * _normal(11, DRAWS, HEADS)
    values = 0.3 + 0.001 * _normal(11, HEADS, seed=1)
    complete = [finding.controls[1] for finding in _stream(values[:8], fixed[:8], fixed[:8])[:HEADS]]
    fixed[8:], values[8:] = np.nan, 300.0
    for finding, alone in zip(_stream(values, fixed, fixed)[:HEADS], complete, strict=True):
        assert finding.value > 50
        assert finding.controls[1].value == pytest.approx(alone.value)
        assert finding.controls[1].p_value == pytest.approx(alone.p_value, rel=1e-6)


@pytest.mark.parametrize("batch", [1, 7, 30])
@pytest.mark.parametrize("limit", [10, None])
def test_controls_are_measured_on_the_first_inputs_however_they_are_batched(batch: int, limit: int | None) -> None:
    values, draws = _normal(30, HEADS), _normal(30, DRAWS, HEADS, seed=1)
    theory, asked = _theory(values, draws, draws), []

    def measure(example: Example, rng: Random) -> Samples:
        asked.append((example.number, example.controls))
        samples = theory.measure(example, rng)
        return {c: dataclasses.replace(x, controls=x.controls if example.controls else {}) for c, x in samples.items()}

    options = {} if limit is None else {"control_inputs": limit}
    measurement = Measured(dataclasses.replace(theory, measure=measure), **options)
    for first in range(0, 30, batch):
        measurement.feed(_call(range(first, min(first + batch, 30))))
    count = 24 if limit is None else limit
    assert sorted(asked) == [(number, number <= count) for number in range(1, 31)]
    alone = _stream(values[:count], draws[:count], draws[:count])[:HEADS]
    for h, (finding, of_few) in enumerate(zip(measurement.findings()[:HEADS], alone, strict=True)):
        assert finding.value == pytest.approx(values[:, h].mean())
        assert finding.inputs == 30
        per_input, fixed = finding.controls
        assert per_input.p_value == pytest.approx(of_few.controls[0].p_value)
        assert fixed.value == pytest.approx(of_few.controls[1].value)
        # The head's own error over all inputs stands for that over the first ones.
        assert fixed.p_value == pytest.approx(of_few.controls[1].p_value, rel=0.2)


def test_a_head_is_as_uncertain_as_its_inputs_with_draws_are_few() -> None:
    """The head alternates, and the draws do not: its error over ten inputs decides, not that over thirty."""
    values = 0.8 + np.array([1.0, -1.0] * 15)[:, None].repeat(HEADS, axis=1)
    fixed = np.linspace(-0.01, 0.01, DRAWS)[None, :, None].repeat(30, axis=0).repeat(HEADS, axis=2)
    alone = _stream(values[:10], fixed[:10], fixed[:10])[0].controls[1].p_value
    fixed[10:] = np.nan
    [all_inputs, *_] = _stream(values, fixed, fixed)
    assert 0.01 < alone < 0.2
    assert all_inputs.controls[1].p_value == pytest.approx(alone, rel=0.15)


def test_one_more_fixed_draw_is_significant_at_the_nominal_rate() -> None:
    heads = 2000
    levels = _normal(DRAWS + 1, heads)
    values, fixed = np.repeat(levels[None, 0], 2, axis=0), np.repeat(levels[None, 1:], 2, axis=0)
    from clearhead.numerics.moments import prediction_p_value

    p = np.array([prediction_p_value(values[0, h], fixed[0, :, h]) for h in range(heads)])
    assert abs((p <= 0.05).mean() - 0.05) < 4 * math.sqrt(0.05 * 0.95 / heads)
    assert prediction_p_value(1.0, np.ones(3)) == 1
    assert math.isnan(prediction_p_value(2.0, np.ones(3)))


def test_the_predicted_value_is_the_claims_or_the_mean_over_inputs() -> None:
    values = _normal(7, HEADS)
    result = _stream(values, _normal(7, DRAWS, HEADS), _normal(7, DRAWS, HEADS))
    assert [f.predicted for f in result[:HEADS]] == [1.0] * HEADS
    assert [f.predicted for f in result[HEADS:]] == pytest.approx(list(2 * values.mean(axis=0)))
    assert all(f.controls == () for f in result[HEADS:])


def test_batches_and_windows() -> None:
    parts = _normal(12, HEADS), _normal(12, DRAWS, HEADS, seed=1), _normal(12, DRAWS, HEADS, seed=2)
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


def test_nan_values_are_not_counted() -> None:
    values, draws = _normal(7, HEADS), _normal(7, DRAWS, HEADS, seed=1)
    values[2, 1] = np.nan
    result, without = (
        _stream(values, draws, draws)[1],
        _stream(*(np.delete(x, 2, axis=0) for x in (values, draws, draws)))[1],
    )
    assert (result.inputs, result.skipped, result.reason) == (6, 1, "no first")
    assert result.value == pytest.approx(without.value)
    assert [c.value for c in result.controls] == pytest.approx([c.value for c in without.controls])


def test_a_window_without_a_value_does_not_remove_the_others() -> None:
    values, draws = _normal(8, HEADS), _normal(8, DRAWS, HEADS, seed=1)
    values[2] = np.nan
    result = _stream(values, draws, draws, batch=4, windows=2)[0]
    assert result.inputs == 4
    assert result.value == pytest.approx(
        np.mean([values[:2, 0].mean(), values[3, 0], *values[4:, 0].reshape(2, 2).mean(1)])
    )


def test_infinite_values_are_not_counted(recwarn: pytest.WarningsRecorder) -> None:
    values, draws = _normal(7, HEADS), _normal(7, DRAWS, HEADS, seed=1)
    values[2, 1], draws[2, :, 1] = np.inf, np.inf
    result = _stream(values, draws, draws)[1]
    assert (result.inputs, result.skipped, result.reason) == (6, 1, "no first")
    assert not recwarn.list


def test_one_input_gives_no_p_value() -> None:
    result = _stream(_normal(1, HEADS), _normal(1, DRAWS, HEADS), _normal(1, DRAWS, HEADS))[0]
    assert all(math.isnan(control.p_value) for control in result.controls)
    assert math.isnan(result.p_value)


def test_heads_with_different_tokens_are_concatenated() -> None:
    tokens = torch.tensor([[True, True, False], [True, False, False]])

    def measure(part: slice, seen: torch.Tensor) -> dict[Claim, Sample]:
        count = np.array([float(seen.sum())])
        return {FIRST: Sample(value=count, controls={PER_INPUT: np.stack([count, -count])}, predicted=10 * count)}

    joined = measure_by_head(tokens, measure)[FIRST]
    assert joined.value.tolist() == [2, 1]
    assert joined.controls[PER_INPUT].tolist() == [[2, 1], [-2, -1]]
    assert joined.predicted is not None
    assert joined.predicted.tolist() == [20, 10]


def test_merged_halves_equal_the_whole() -> None:
    parts = _normal(13, HEADS), _normal(13, DRAWS, HEADS, seed=1), _normal(13, DRAWS, HEADS, seed=2)
    parts[0][5, 1] = np.nan
    whole = _measured(*parts, batch=3)
    first, second = _measured(*parts, inputs=range(6)), _measured(*parts, inputs=range(6, 13))
    first.merge(second)
    for a, b in zip(first.findings(), whole.findings(), strict=True):
        assert (a.inputs, a.skipped, a.reasons) == (b.inputs, b.skipped, b.reasons)
        assert (a.value, a.interval.low, a.predicted) == pytest.approx(
            (b.value, b.interval.low, b.predicted), rel=1e-12
        )
        for c, d in zip(a.controls, b.controls, strict=True):
            assert (c.value, c.range.high, c.p_value) == pytest.approx((d.value, d.range.high, d.p_value), rel=1e-9)
    for merged, together in zip(first.samples(), whole.samples(), strict=True):
        np.testing.assert_array_equal(merged.values, together.values)


def test_samples_are_the_values_input_by_input_and_empty_where_nothing_was_measured() -> None:
    parts = _normal(4, HEADS), _normal(4, DRAWS, HEADS, seed=1), _normal(4, DRAWS, HEADS, seed=2)
    parts[0][2, 1] = np.nan
    measurement = Measured(_theory(*parts))
    measurement.feed(_call([0, -1, 2]))
    measurement.feed(_call([3]))
    expected = np.stack([parts[0][0], np.full(HEADS, np.nan), parts[0][2], parts[0][3]])
    [sample] = [s for s in measurement.samples() if s.claim.statistic == FIRST.statistic]
    np.testing.assert_array_equal(sample.values, expected)
    assert (sample.layer, sample.name, sample.claim.role) == (0, "a", FIRST.role)


def test_sums_are_saved_and_restored_exactly(tmp_path: Path) -> None:
    parts = _normal(7, HEADS), _normal(7, DRAWS, HEADS, seed=1), _normal(7, DRAWS, HEADS, seed=2)
    parts[0][2, 1] = np.nan
    measurement = _measured(*parts)
    measurement.feed(_call([-1]))
    write_state(tmp_path / "sums", measurement.state())
    restored = Measured.from_state(read_state(tmp_path / "sums"), _theory(*parts))
    assert repr(restored.findings()) == repr(measurement.findings())
    np.testing.assert_equal(restored.state(), measurement.state())
    for each in (restored, measurement):
        each.feed(_call([3, 4]))
    assert repr(restored.findings()) == repr(measurement.findings())


def test_halves_of_a_real_theory_merge_if_the_second_has_the_previous_group() -> None:
    def call(seed: int) -> Heads:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(3, 2, 11, 4, generator=generator, dtype=torch.float64) for _ in range(3))
        return Heads(layer=1, name="a", q=q, k=k, v=v, out=v, scale=0.5)

    whole, first, second = (
        Measured(kernel_pca.THEORY, seed=5),
        Measured(kernel_pca.THEORY, seed=5),
        Measured(kernel_pca.THEORY, seed=5, first=6),
    )
    for number in range(4):
        whole.feed(call(number))
        (first if number < 2 else second).feed(call(number))
    first.merge(second)
    for a, b in zip(first.findings(), whole.findings(), strict=True):
        assert (a.inputs, a.skipped) == (b.inputs, b.skipped)
        assert a.value == pytest.approx(b.value, rel=1e-10, nan_ok=True)
        assert [c.value for c in a.controls] == pytest.approx([c.value for c in b.controls], rel=1e-10, nan_ok=True)


def test_parts_of_different_audits_do_not_merge() -> None:
    parts = _normal(4, HEADS), _normal(4, DRAWS, HEADS, seed=1), _normal(4, DRAWS, HEADS, seed=2)
    first, theory = _measured(*parts), _theory(*parts)
    with pytest.raises(InputError, match="one audit"):
        first.merge(Measured(theory, seed=1))
    with pytest.raises(InputError, match="one audit"):
        first.merge(Measured(theory, controls=False))
    other = Measured(theory)
    other.feed(dataclasses.replace(_call([1]), name="b"))
    with pytest.raises(InputError, match=r"layer 0 is a .*b with 3"):
        first.merge(other)
    with pytest.raises(InputError, match="one audit"):
        first.merge(Measured(symmetry.THEORY))


def test_inputs_to_which_the_theory_does_not_apply_are_skipped_with_their_reason() -> None:
    parts = _normal(4, HEADS), _normal(4, DRAWS, HEADS, seed=1), _normal(4, DRAWS, HEADS, seed=2)
    measurement = Measured(_theory(*parts))
    measurement.feed(_call([0, -1, 2]))
    for finding in measurement.findings():
        assert (finding.inputs, finding.skipped) == (2, 1)
        assert finding.reasons == (Reason(ReasonKind.TOO_SHORT, "negative"),)


def test_random_numbers_depend_only_on_seed_layer_number_and_window() -> None:
    drawn: dict[tuple[int, ...], float] = {}

    def measure(example: Example, rng: Random) -> Samples:
        drawn[example.layer, int(example.q[0, 0, 0])] = float(torch.rand((), generator=rng.torch))
        return {FIRST: Sample(value=np.zeros(HEADS), controls={})}

    theory = Theory(key="t", title="t", claims=(FIRST,), measure=measure)
    Measured(theory).feed(_call([0, 1, 2, 3]))
    together = dict(drawn)
    apart = Measured(theory)
    for i in range(4):
        apart.feed(_call([i]))
    assert drawn == together
    assert len(set(drawn.values())) == 4
    expected = torch.Generator().manual_seed(int(np.random.SeedSequence([0, 0, 3, 0]).generate_state(1)[0]))
    assert drawn[0, 2] == float(torch.rand((), generator=expected))
    Measured(theory).feed(_call([0], layer=1))
    assert drawn[1, 0] != drawn[0, 0]
    Measured(theory, seed=1).feed(_call([0]))
    assert drawn[0, 0] != together[0, 0]
    Measured(theory).feed(_call([0, 1], windows=2))
    assert drawn[0, 1] not in (together[0, 1], drawn[0, 0])
    assert drawn[0, 0] == together[0, 0]


def test_an_input_with_one_usable_window_is_measured_and_needs_no_reason() -> None:
    parts = _normal(4, HEADS), _normal(4, DRAWS, HEADS, seed=1), _normal(4, DRAWS, HEADS, seed=2)
    measurement = Measured(_theory(*parts))
    measurement.feed(_call([3, -1], windows=2))
    for finding in measurement.findings():
        assert (finding.inputs, finding.skipped, finding.reasons) == (1, 0, ())
        assert finding.value == pytest.approx(parts[0][3, finding.head])


def test_fixed_draws_are_widened_by_the_heads_own_error() -> None:
    """A head far from three close draws on average, on inputs among which it varies a lot."""
    fixed = np.array([-0.01, 0.0, 0.01, 0.02, -0.02])[None, :, None] + np.zeros((11, DRAWS, HEADS))
    wide = np.random.default_rng(0).normal(0.3, 1.0, size=(11, HEADS))
    steady = np.full((11, HEADS), 0.3) + 1e-6 * wide
    for values, significant in ((wide, False), (steady, True)):
        for finding in _stream(values, fixed, fixed)[:HEADS]:
            p = {control.name: control.p_value for control in finding.controls}
            assert (p["fixed"] < 0.05) is significant


def test_a_head_is_covered_if_it_is_on_every_input() -> None:
    covered = np.array([[True, True, False], [True, False, False], [True, True, False]])

    def measure(example: Example, rng: Random) -> Samples:
        i = int(example.q[0, 0, 0])
        return {FIRST: Sample(value=np.full(HEADS, 0.1 * i), controls={}, covered=covered[i])}

    measurement = Measured(Theory(key="t", title="t", claims=(FIRST,), measure=measure))
    measurement.feed(_call(range(3)))
    assert [finding.applies for finding in measurement.findings()] == [True, False, False]


def test_claims_that_are_not_wanted_are_neither_measured_nor_found() -> None:
    asked = []

    def measure(example: Example, rng: Random) -> Samples:
        asked.append([claim for claim in (FIRST, SECOND) if example.wants(claim)])
        return {claim: Sample(value=np.zeros(HEADS), controls={}) for claim in (FIRST, SECOND)}

    theory = Theory(key="t", title="t", claims=(FIRST, SECOND), measure=measure)
    some, everything = Measured(theory, claims=[FIRST]), Measured(theory)
    for measurement in (some, everything):
        measurement.feed(_call([0, 1]))
    assert asked == [[FIRST]] * 2 + [[FIRST, SECOND]] * 2
    assert {f.claim for f in some.findings()} == {FIRST}
    assert {f.claim for f in everything.findings()} == {FIRST, SECOND}


def test_inputs_beyond_the_most_are_ignored_however_they_are_batched() -> None:
    parts = _normal(5, 3), _normal(5, 2, 3), _normal(5, 2, 3)
    found = []
    for batches in ([[0, 1, 2, 3, 4]], [[0, 1], [2, 3], [4]]):
        measurement = Measured(_theory(*parts), limit=3)
        for ids in batches:
            measurement.feed(_call(ids))
        found.append(measurement.findings())
    assert repr(found[0]) == repr(found[1])
    assert {f.inputs for f in found[0]} == {3}


def test_theories_compute_on_one_thread() -> None:
    """Threads of small products wait by spinning: on a busy machine two took four times the processor time of one."""
    seen = []

    def measure(example: Example, rng: Random) -> Samples:
        seen.append(torch.get_num_threads())
        return {FIRST: Sample(value=np.zeros(HEADS), controls={})}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measurement = Measured(Theory(key="t", title="t", claims=(FIRST,), measure=measure))
        measurement.feed(_call([0, 1, 2]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_a_layer_with_two_inputs_for_each_of_the_audit_is_numbered_alike_in_parts() -> None:
    drawn: list[float] = []

    def measure(example: Example, rng: Random) -> Samples:
        drawn.append(float(rng.numpy.random()))
        return {FIRST: Sample(value=np.zeros(HEADS), controls={})}

    theory = Theory(key="t", title="t", claims=(FIRST,), measure=measure)
    Measured(theory).feed(_call(range(8)), inputs=4)
    whole, drawn[:] = list(drawn), []
    Measured(theory, first=3).feed(_call(range(6, 8)), inputs=1)
    assert drawn == whole[6:]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_history_is_neither_measured_nor_counted(batch: int) -> None:
    parts = _normal(12, HEADS), _normal(12, DRAWS, HEADS, seed=1), _normal(12, DRAWS, HEADS, seed=2)
    with_history, without = (Measured(_theory(*parts), first=5) for _ in range(2))
    for start in range(0, 5, batch):
        with_history.feed(_call(range(start, min(start + batch, 5))), ahead=5 - start)
    for measurement in (with_history, without):
        measurement.feed(_call(range(5, 12)))
    np.testing.assert_equal(with_history.state(), without.state())


def test_an_input_takes_ten_bytes_per_claim_and_head() -> None:
    """A number of 8 bytes, in a table that grows by a quarter; no object for each input."""
    inputs = 4000
    measurement = Measured(Theory(key="t", title="t", claims=(FIRST,), measure=_zeros))
    measurement.feed(_call(range(500)))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, inputs, 500):
            measurement.feed(_call(range(start, start + 500)))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # An object of numpy has 112 bytes, so one for each input would be 448 kB; 50 kB are for everything else.
    assert 8 * inputs * HEADS <= grown <= 10 * inputs * HEADS + 50_000


def _zeros(example: Example, rng: Random) -> Samples:
    return {FIRST: Sample(value=np.zeros(HEADS), controls={})}
