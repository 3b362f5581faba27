import math

import pytest
import torch

from clearhead.numerics.coding_rate import subspace_rates
from clearhead.theories.coding_rate import THEORY
from clearhead.theories.coding_rate.depth import density, gaussian_density, nonzero_fraction
from tests.measured import Measured
from tests.theories.coding_rate.synthetic_heads import INPUTS, bases, compressed, heads_of, tokens

Z = tokens()


def measured(*calls, controls: bool = True) -> Measured:
    measurement = Measured(THEORY, controls=controls)
    for heads in calls:
        measurement.feed(heads)
    return measurement


def test_curves_are_means_over_inputs_by_layer() -> None:
    between = [compressed(Z), compressed(compressed(Z))]
    after = [Z.clamp_min(0), Z.clamp_min(1)]
    calls = [heads_of(Z, between[i], after=after[i], layer=2 + i) for i in range(2)]
    measurement = measured(*calls)
    raw, unit, dense, nonzero = measurement.curves()
    size = torch.linalg.vector_norm
    for i in range(2):
        rates = subspace_rates(between[i], bases()).sum(dim=-1)
        assert raw.lines[0].values[i] == pytest.approx(float(rates.mean()))
        half = 2.446912 * float(rates.std()) / math.sqrt(INPUTS)
        assert raw.lines[0].intervals[i].high == pytest.approx(float(rates.mean()) + half)
        factor = size(between[i], dim=(1, 2), keepdim=True) / size(Z, dim=(1, 2), keepdim=True)
        assert raw.lines[1].values[i] == pytest.approx(float(subspace_rates(factor * Z, bases()).sum(dim=-1).mean()))
        unit_after = between[i] / size(between[i], dim=-1, keepdim=True)
        assert unit.lines[0].values[i] == pytest.approx(float(subspace_rates(unit_after, bases()).sum(dim=-1).mean()))
        assert dense.lines[0].values[i] == pytest.approx(sum(density(z) for z in after[i]) / INPUTS)
        assert nonzero.lines[0].values[i] == pytest.approx(sum(nonzero_fraction(z) for z in after[i]) / INPUTS)
    assert dense.lines[-1].values == pytest.approx((gaussian_density(after[0].shape[-1]),) * 2)
    for curve in (raw, unit, dense, nonzero):
        assert curve.layers == (2, 3)
        assert curve.lines[0].name == "this model"
        assert len({line.name for line in curve.lines}) == len(curve.lines) > 1


def test_random_subspaces_are_of_the_same_number_and_width() -> None:
    """For isotropic tokens, the sum over as many random subspaces equals the sum over the heads' subspaces."""
    even = torch.randn(INPUTS, 97, 31, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    raw, unit = measured(heads_of(even, even)).curves()[:2]
    for curve in (raw, unit):
        assert curve.lines[-1].name == "in random subspaces"
        assert curve.lines[-1].values[0] == pytest.approx(curve.lines[0].values[0], rel=0.03)


def test_the_baselines_line_is_second() -> None:
    trained, before = (
        measured(heads_of(z, compressed(z), after=z), **options).curves()
        for z, options in ((Z, {}), (tokens(seed=3), {"controls": False}))
    )
    compared = [curve.with_line([other], name="before") for curve, other in zip(trained, before, strict=True)]
    for curve, own, other in zip(compared, trained, before, strict=True):
        assert [line.name for line in curve.lines[:2]] == ["this model", "before"]
        assert curve.lines[1].values == other.lines[0].values
        assert curve.lines[2:] == own.lines[1:]
        assert len(other.lines) == 1
        assert own.with_line([], name="before") == own
        mean = own.with_line([other, own], name="both").lines[1]
        assert mean.values == pytest.approx(
            [(a + b) / 2 for a, b in zip(other.lines[0].values, own.lines[0].values, strict=True)]
        )
        assert all(i.low <= v <= i.high for i, v in zip(mean.intervals, mean.values, strict=True))
    (elsewhere,) = measured(heads_of(Z, Z, layer=5)).curves()[:1]
    assert trained[0].with_line([elsewhere], name="before") == trained[0]


def test_without_measurements_there_is_no_curve() -> None:
    assert measured(heads_of(Z, Z, stream=False)).curves() == []
    assert len(measured(heads_of(Z, Z)).curves()) == 2
    assert len(measured(heads_of(Z, Z, after=Z, values=False)).curves()) == 2


def test_zero_tokens_are_counted() -> None:
    holes = Z.clone()
    holes[:, 3] = 0
    measurement = measured(heads_of(Z, holes, layer=1), heads_of(holes, holes, layer=2))
    assert measurement.notes() == [
        f"coding rate: tokens of length zero, which cannot be scaled to length one, in {INPUTS} inputs at layers 1, 2"
    ]
    assert measured(heads_of(Z, Z)).notes() == []
    assert all(math.isfinite(f.value) for f in measurement.findings() if f.claim.theory == "coding rate" and f.inputs)
