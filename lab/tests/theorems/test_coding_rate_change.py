"""The change of a rate, separated from the change of the tokens' size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.numerics.coding_rate import coding_rate, subspace_rates
from clearhead.shapes import ShapeError
from clearhead_lab.theorems.coding_rate.change import rate_change, scale_matched, size_ratio, unit_tokens
from tests.numerics.test_coding_rate import orthonormal
from tests.numerics.test_logdet import normal


@given(st.integers(0, 2**31), st.sampled_from([0.3, 0.9, 2.0]))
def test_a_change_of_size_alone_is_not_compression(seed: int, factor: float) -> None:
    z, bases = normal(2, 13, 7, seed=seed), orthonormal(3, 7, 2)
    change = rate_change(z, factor * z, bases=bases)
    torch.testing.assert_close(change.raw, change.shrink_null)
    assert bool((change.raw.sign() == (1 if factor > 1 else -1)).all())
    for unchanged in (change.unit_norm, change.scale_matched):
        assert unchanged.abs().max() < 1e-12 * change.before.max()


def test_tokens_moved_towards_their_mean_are_compressed_whatever_their_size() -> None:
    z, bases = normal(2, 13, 7), orthonormal(3, 7, 2)
    contracted = 3 * (0.5 * z + 0.5 * z.mean(dim=-2, keepdim=True))
    change = rate_change(z, contracted, bases=bases)
    assert max(change.unit_norm.max(), change.scale_matched.max()) < 0
    assert change.raw.min() > 0  # the raw rate rises
    reverse = rate_change(contracted, z, bases=bases)
    assert min(reverse.unit_norm.min(), reverse.scale_matched.min()) > 0


def test_each_change_follows_its_definition() -> None:
    before, after, bases = normal(2, 13, 7), normal(2, 13, 7, seed=1), orthonormal(3, 7, 2)
    change = rate_change(before, after, bases=bases, eps=0.3)

    def rate(z: torch.Tensor) -> torch.Tensor:
        return subspace_rates(z, bases, eps=0.3).sum(dim=-1)

    ratio = (before.flatten(1).norm(dim=1) / after.flatten(1).norm(dim=1))[:, None, None]
    unit = [z / z.norm(dim=-1, keepdim=True) for z in (before, after)]
    torch.testing.assert_close(change.before, rate(before))
    torch.testing.assert_close(change.raw, rate(after) - rate(before))
    torch.testing.assert_close(change.unit_norm, rate(unit[1]) - rate(unit[0]))
    torch.testing.assert_close(change.scale_matched, rate(after * ratio) - rate(before))
    torch.testing.assert_close(change.shrink_null, rate(before / ratio) - rate(before))
    torch.testing.assert_close(rate_change(before, after).raw, coding_rate(after) - coding_rate(before))


def test_zero_tokens_stay_zero_and_are_counted() -> None:
    z = normal(2, 5, 3)
    z[0, 1] = z[0, 4] = 0
    unit = unit_tokens(z)
    assert unit.zeros.tolist() == [2, 0]
    assert unit.tokens[0, 1].tolist() == [0, 0, 0]
    torch.testing.assert_close(unit.tokens[1].norm(dim=-1), torch.ones(5, dtype=torch.float64))
    assert rate_change(z, normal(2, 5, 3, seed=1)).zeros.tolist() == [2, 0]
    assert rate_change(z, torch.zeros_like(z)).raw.isfinite().all()
    assert size_ratio(torch.zeros_like(z), z).tolist() == [1, 1]
    torch.testing.assert_close(scale_matched(z, torch.zeros_like(z)), torch.zeros_like(z))


def test_half_precision_is_converted_before_scaling() -> None:
    z = normal(5, 3).bfloat16()
    assert unit_tokens(z).tokens.dtype is scale_matched(z, 3 * z).dtype is torch.float32
    assert float(rate_change(z, 2 * z).scale_matched.abs()) < 1e-5


def test_different_shapes_are_refused(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses these shapes first")
    with pytest.raises(ShapeError, match="same shape"):
        rate_change(normal(5, 3), normal(5, 2))
