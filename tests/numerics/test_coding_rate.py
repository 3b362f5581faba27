"""Coding rates: definitions, edge cases, gradients, and rounding noise."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.numerics.coding_rate import (
    RoundingNoiseWarning,
    class_rates,
    coding_rate,
    numerical_rank,
    predicted_excess,
    rate_gradient,
    rate_reduction,
    subspace_rate_gradient,
    subspace_rates,
)
from clearhead.numerics.logdet import LOST
from clearhead.shapes import ShapeError
from tests.numerics.test_logdet import low_rank, normal

seeds = st.integers(0, 2**31)
EXACT = LOST[torch.float64]


def orthonormal(k: int, d: int, p: int, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(normal(k, d, p, seed=seed))[0]


def by_singular_values(z: torch.Tensor, eps: float) -> float:
    n, d = z.shape
    values = np.linalg.svd(z.numpy(), compute_uv=False)
    return float(0.5 * np.log1p(d / (n * eps**2) * values**2).sum())


@given(seeds, st.sampled_from([(1, 1), (1, 7), (11, 1), (5, 7), (13, 7)]), st.sampled_from([1.0, 0.5, 0.1, 1e-3, 1e-5]))
def test_coding_rate_is_half_the_sum_of_logarithms(seed: int, size: tuple[int, int], eps: float) -> None:
    z = normal(*size, seed=seed)
    z[:, -1] = 0
    assert math.isclose(float(coding_rate(z, eps=eps)), by_singular_values(z, eps), rel_tol=EXACT, abs_tol=0)
    assert not math.isclose(float(coding_rate(z + 1, eps=eps)), by_singular_values(z, eps), rel_tol=1e-6)


def test_eps_enters_squared() -> None:
    """For one token of length one in one dimension, R = log(1 + 1 / eps^2) / 2."""
    assert float(coding_rate(torch.ones(1, 1), eps=0.5)) == pytest.approx(0.5 * math.log(5))
    assert float(coding_rate(torch.ones(1, 1), eps=math.sqrt(0.5))) == pytest.approx(0.5 * math.log(3))


def test_repeating_tokens_keeps_the_rate() -> None:
    """The rate depends on the distribution: repeating all tokens does not change it, a new direction does."""
    z = normal(5, 7)
    torch.testing.assert_close(coding_rate(torch.cat([z, z])), coding_rate(z))
    assert coding_rate(torch.cat([z, normal(5, 7, seed=1)])) > coding_rate(z) + 0.1


def test_subspace_rates_are_rates_of_projections() -> None:
    z, bases = normal(2, 3, 11, 7), orthonormal(5, 7, 3)
    result = subspace_rates(z, bases, eps=0.3)
    want = torch.stack([coding_rate(z @ basis, eps=0.3) for basis in bases], dim=-1)
    torch.testing.assert_close(result, want)
    weighted = torch.stack([coding_rate(z @ basis, eps=0.3 * math.sqrt(3 / 7)) for basis in bases], dim=-1)
    assert (result - weighted).abs().min() > 0.1  # d in place of p


def test_class_rates_by_labels_and_by_membership() -> None:
    z, labels = normal(17, 5), torch.arange(17) % 3
    labels[labels == 1] = 3  # classes 1 and, once, 2 of four
    labels[0] = 0
    result = class_rates(z, labels=labels, eps=0.7)
    sizes = torch.bincount(labels)
    want = [by_singular_values(z[labels == k], 0.7) if sizes[k] else 0.0 for k in range(4)]
    assert result.rates.tolist() == pytest.approx(want, rel=EXACT)
    assert result.weights.tolist() == pytest.approx((sizes / 17).tolist())
    assert result.rates[1] == result.weights[1] == 0
    members = torch.nn.functional.one_hot(labels, 4).T.double()
    torch.testing.assert_close(class_rates(z, membership=members, eps=0.7).rates, result.rates)


def test_soft_memberships_match_the_definition() -> None:
    z, eps = normal(17, 5), 0.7
    members = normal(3, 17, seed=1).softmax(dim=0)
    result = class_rates(z, membership=members, eps=eps)
    for rate, weight, own in zip(result.rates, result.weights, members, strict=True):
        matrix = torch.eye(5) + 5 / (own.sum() * eps**2) * (z.T * own) @ z
        torch.testing.assert_close(rate, torch.logdet(matrix) / 2)
        torch.testing.assert_close(weight, own.sum() / 17)


@given(seeds)
def test_rate_reduction_is_positive_only_if_classes_differ(seed: int) -> None:
    z = normal(23, 5, seed=seed)
    labels = torch.arange(23) % 3
    result = rate_reduction(z, labels=labels)
    torch.testing.assert_close(result.value, coding_rate(z) - class_rates(z, labels=labels).compression)
    assert result.value > 0
    same = rate_reduction(z.repeat(3, 1), labels=torch.arange(3).repeat_interleave(23))
    assert abs(float(same.value)) < EXACT * float(same.expansion)


def test_gradients_are_those_of_autograd() -> None:
    for shape in ((2, 11, 7), (2, 3, 7)):
        z, bases = normal(*shape).requires_grad_(), orthonormal(5, 7, 3)
        n = shape[-2]
        alpha, a = 7 / (n * 0.09), 3 / (n * 0.09)
        (by_torch,) = torch.autograd.grad(coding_rate(z, eps=0.3).sum(), z)
        inverse = torch.linalg.inv(torch.eye(7) + alpha * z.mT @ z)
        for other in (rate_gradient(z, eps=0.3), alpha * z @ inverse):
            torch.testing.assert_close(other, by_torch, rtol=1e-12, atol=1e-12)
        (by_torch,) = torch.autograd.grad(subspace_rates(z, bases, eps=0.3).sum(), z)
        v = [z @ u for u in bases]
        each = [a * w @ torch.linalg.inv(torch.eye(3) + a * w.mT @ w) @ u.T for w, u in zip(v, bases, strict=True)]
        for other in (subspace_rate_gradient(z, bases, eps=0.3), sum(each)):
            torch.testing.assert_close(other, by_torch, rtol=1e-12, atol=1e-12)
        assert (rate_gradient(z, eps=0.31) - rate_gradient(z, eps=0.3)).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [0.01, 0.001])
def test_rounding_adds_the_predicted_amount_and_warns(dtype: torch.dtype, eps: float) -> None:
    """512 tokens of rank 8 in 64 dimensions, every entry of size one, as after a norm layer."""
    z = low_rank(512, 64, 8) * math.sqrt(64)
    with pytest.warns(RoundingNoiseWarning, match=f"{str(dtype)[6:]} .* too high by about .* larger eps"):
        got = coding_rate(z.to(dtype), eps=eps)
    excess = float(got) - by_singular_values(z, eps)
    u = torch.finfo(dtype).eps / 2
    closed = 0.5 * (64 - 8) * math.log1p(64 * (0.4 * u) ** 2 / eps**2)
    predicted = predicted_excess(z.to(dtype), dtype=dtype, eps=eps)
    assert predicted == pytest.approx(excess, rel=0.15)
    assert predicted == pytest.approx(closed, rel=0.1)
    assert excess > 0.3


def test_no_warning_if_rounding_is_negligible() -> None:
    quiet = [
        (low_rank(512, 64, 8).bfloat16(), 0.5),
        (normal(512, 61).bfloat16(), 0.1),  # noise added to a signal of full rank
        (low_rank(512, 64, 8).float(), 1e-5),
        (low_rank(512, 64, 8), 1e-9),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingNoiseWarning)
        for z, eps in quiet:
            assert bool(coding_rate(z, eps=eps).isfinite())
    with pytest.warns(RoundingNoiseWarning, match="float32"):
        coding_rate(low_rank(512, 64, 8).float(), eps=1e-8)
    with pytest.warns(RoundingNoiseWarning, match="bfloat16"):
        subspace_rates(low_rank(512, 64, 3).bfloat16(), orthonormal(2, 64, 13), eps=1e-3)


def test_half_precision_input_gives_single_precision_rates() -> None:
    z = normal(13, 7).bfloat16()
    bases = orthonormal(2, 7, 3).float()
    assert coding_rate(z).dtype is subspace_rates(z, bases).dtype is torch.float32
    torch.testing.assert_close(coding_rate(z).double(), coding_rate(z.double()), rtol=LOST[torch.float32], atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = subspace_rates(z.float(), bases)
    torch.testing.assert_close(under, subspace_rates(z.float(), bases))


def test_numerical_rank_and_the_growth_of_the_rate() -> None:
    z = low_rank(31, 13, 5)
    assert int(numerical_rank(z)) == int(numerical_rank(z.float())) == int(numerical_rank(z.bfloat16())) == 5
    assert numerical_rank(torch.stack([z, normal(31, 13)])).tolist() == [5, 13]
    growth = coding_rate(z, eps=1e-5) - coding_rate(z, eps=1e-4)
    assert float(growth) == pytest.approx(5 * math.log(10), rel=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding_rate(normal(3, 2), eps=0.0), "eps > 0"),
        (lambda: coding_rate(normal(3, 2), eps=-1.0), "eps > 0"),
        (lambda: coding_rate(normal(3, 2), eps=math.nan), "eps > 0"),
        (lambda: coding_rate(normal(0, 2)), "at least one token"),
        (lambda: coding_rate(torch.full((3, 2), torch.nan)), "NaN or infinity"),
        (lambda: rate_gradient(torch.full((3, 2), torch.inf)), "NaN or infinity"),
        (lambda: class_rates(normal(3, 2)), "labels or a membership; got neither"),
        (lambda: class_rates(normal(3, 2), labels=torch.tensor([0, -1, 1])), "lowest -1"),
        (lambda: class_rates(normal(3, 2), membership=2 * torch.ones(1, 3)), "between 0 and 1"),
        (lambda: class_rates(normal(3, 2), membership=torch.ones(1, 3, requires_grad=True)), "detach"),
    ],
)
def test_error_messages_name_cause_and_remedy(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_shapes_raise_an_error(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses these shapes first")
    for call in (
        lambda: coding_rate(normal(3)),
        lambda: coding_rate(normal(3, 0)),
        lambda: subspace_rates(normal(5, 7), orthonormal(2, 5, 3)),
        lambda: class_rates(normal(3, 2), membership=torch.ones(1, 5)),
    ):
        with pytest.raises(ShapeError, match="expected"):
            call()
    with pytest.raises(ValueError, match="floating dtype"):
        coding_rate(torch.ones(3, 2, dtype=torch.long))


def test_invalid_labels_and_memberships_raise_an_error(typechecked: bool) -> None:
    z = torch.ones(5, 3)
    with pytest.raises(ValueError, match="up to 1000000; got 2147483647"):
        class_rates(z, labels=torch.full((5,), 2**31 - 1))
    with pytest.raises(ValueError, match="sum to one"):
        rate_reduction(z, membership=torch.ones(4, 5))
    for eps in (1e-200, 1e200, 1e-160):
        with pytest.raises(ValueError, match="eps > 0"):
            coding_rate(z, eps=eps)
    with pytest.raises(ValueError, match="finite tokens"):
        numerical_rank(z * torch.nan)
    if typechecked:
        pytest.skip("the import hook refuses these first")
    with pytest.raises(ValueError, match="integer labels"):
        class_rates(z, labels=torch.full((5,), 0.5))
    with pytest.raises(ShapeError, match="one set at a time"):
        class_rates(torch.ones(5, 5, 3), labels=torch.zeros(5, dtype=torch.long))


def test_vmap_works_in_half_precision() -> None:
    z = normal(3, 7, 5).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingNoiseWarning)
        mapped, plain = torch.vmap(lambda x: coding_rate(x, eps=0.01))(z), coding_rate(z, eps=0.01)
    torch.testing.assert_close(mapped, plain)
