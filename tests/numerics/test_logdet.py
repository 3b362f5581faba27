"""log det(I + a X^T X) and its gradient, for each method of computing them."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics import logdet
from clearhead.numerics.logdet import (
    LOST,
    log_det,
    log_det_by_gram,
    log_det_gradient,
    log_det_of_gram,
    log_det_slow,
)
from clearhead.numerics.precision import difference_step, tolerance

seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(1, 1), (1, 5), (7, 1), (7, 5), (5, 7), (3, 11), (31, 3)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def low_rank(n: int, d: int, rank: int, seed: int = 0) -> Tensor:
    """Tokens of length one in a subspace."""
    z = normal(n, rank, seed=seed) @ normal(rank, d, seed=seed + 1)
    return z / z.norm(dim=-1, keepdim=True)


@given(seeds, sizes, st.sampled_from([1e-9, 0.3, 40.0]))
def test_value_and_gradient_match_the_definition(seed: int, size: tuple[int, int], a: float) -> None:
    x = normal(2, 3, *size, seed=seed).requires_grad_()
    along = normal(2, 3, seed=seed + 1)
    fast, slow = log_det(x, a=a), torch.log1p(a * torch.linalg.svdvals(x.detach()).square()).sum(dim=-1)
    torch.testing.assert_close(fast, slow, rtol=LOST[torch.float64], atol=0)
    (got,) = torch.autograd.grad(fast, x, along)
    (want,) = torch.autograd.grad(log_det_slow(x, a=a), x, along)
    torch.testing.assert_close(got, want, rtol=tolerance(torch.float64, terms=1000), atol=1e-9 * a)
    torch.testing.assert_close(log_det_gradient(x, a=a) * along[..., None, None], got)


def test_control_the_trace_differs() -> None:
    """The control of the test above: the trace equals log det only to first order in a."""
    x = normal(7, 5)
    trace = x.square().sum()
    assert abs(log_det(x, a=1e-9) / (1e-9 * trace) - 1) < 1e-6
    assert abs(log_det(x, a=0.3) / (0.3 * trace) - 1) > 0.1


@DTYPES
def test_items_of_a_batch_are_solved_independently(dtype: torch.dtype) -> None:
    """The first item is solved in single precision, the second in double, the last two by singular values."""
    a = torch.tensor([0.1, 1e6, 1e26, 1e-20], dtype=torch.float64)
    x = torch.stack([normal(7, 5), *(low_rank(7, 5, 2, seed=seed) for seed in (3, 5, 7))]).to(dtype).requires_grad_()
    together = log_det(x, a=a.to(dtype))
    alone = torch.stack([log_det(one, a=float(factor)) for one, factor in zip(x, a, strict=True)])
    torch.testing.assert_close(together, alone, rtol=tolerance(dtype), atol=0)
    gradients = [torch.autograd.grad(value.sum(), x)[0] for value in (together, alone)]
    for got, want in zip(*gradients, strict=True):
        assert (got - want).norm() <= 1e-3 * want.norm() if dtype is torch.float32 else 1e-9 * want.norm()
    assert (together - log_det(x, a=2.0)).abs().min() > 1


@pytest.mark.parametrize("size", [(61, 13), (13, 61)])
def test_the_smaller_gram_matrix_is_factored(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    gram = logdet._gram
    monkeypatch.setattr(logdet, "_gram", lambda *args: seen.append(gram(*args).shape[-1]) or gram(*args))
    log_det(normal(*size))
    assert seen == [13]


@DTYPES
@pytest.mark.parametrize("eps", [1.0, 0.1, 1e-2, 1e-3, 1e-5])
def test_rank_deficient_tokens_are_exact_at_every_eps(dtype: torch.dtype, eps: float) -> None:
    """512 tokens of rank 8 in 64 dimensions; a determinant in single precision fails."""
    x, a = low_rank(512, 64, 8), 64 / 512 / eps**2
    exact = np.log1p(a * np.linalg.svd(x.numpy(), compute_uv=False)[:8] ** 2).sum()
    got = log_det(x.to(dtype), a=a)
    assert got.dtype is dtype
    assert abs(float(got) / exact - 1) < LOST[dtype]
    if eps <= 1e-2:
        assert not abs(float(log_det_slow(x.float(), a=a)) / exact - 1) < LOST[torch.float32]


def test_values_agree_with_50_digit_arithmetic() -> None:
    """Integers, so that mpmath and torch start from the same numbers; two rows are equal."""
    x = normal(5, 3).mul(8).round()
    x[1] = x[0]
    with mpmath.workdps(50):
        matrix = mpmath.eye(3) + mpmath.mpf(10) ** 12 * mpmath.matrix(x.T.tolist()) * mpmath.matrix(x.tolist())
        want = float(mpmath.log(mpmath.det(matrix)))
    assert abs(float(log_det(x, a=1e12)) / want - 1) < 1e-14


@pytest.mark.parametrize("rank", [3, 13])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_under_autocast_too(dtype: torch.dtype, rank: int) -> None:
    x = low_rank(61, 13, rank).to(dtype)
    want = log_det(x.double(), a=20.0)
    with torch.autocast("cpu", dtype=dtype):
        leaf = x.float().requires_grad_()
        got, recorded = log_det(x, a=20.0), log_det(leaf, a=20.0)
        (gradient,) = torch.autograd.grad(recorded, leaf)
        control = log_det_slow(leaf.detach(), a=20.0)
    assert got.dtype is recorded.dtype is torch.float32
    for one in (got, recorded):
        assert abs(float(one.detach()) / float(want) - 1) < LOST[torch.float32]
    torch.testing.assert_close(gradient.double(), log_det_gradient(x.double(), a=20.0), rtol=1e-4, atol=1e-5)
    assert not abs(float(control) / float(want) - 1) < LOST[torch.float32]


@pytest.mark.parametrize("a", [0.3, 1e14])
def test_gradients_match_finite_differences(a: float) -> None:
    """Both methods: by a factor and by singular values."""
    x = torch.cat([low_rank(5, 7, 2), low_rank(3, 7, 1, seed=9)])
    step = difference_step(torch.float64) * 1e-3
    towards = normal(8, 7, seed=3)
    towards = x @ (x.T @ towards)  # within the span, where the value is smooth at this scale
    towards = towards / towards.norm()
    slope = (log_det(x + step * towards, a=a) - log_det(x - step * towards, a=a)) / (2 * step)
    torch.testing.assert_close((log_det_gradient(x, a=a) * towards).sum(), slope, rtol=1e-4, atol=1e-4)


def test_a_failed_factorisation_leaves_other_gradients_finite() -> None:
    """Equal columns, so long that the added identity is lost: the last pivot is exactly zero."""
    x = torch.stack([torch.full((3, 2), 2.0**20), normal(3, 2).float()]).requires_grad_()
    (got,) = torch.autograd.grad(log_det(x).sum(), x)
    torch.testing.assert_close(got.double(), log_det_gradient(x.detach().double()), rtol=1e-5, atol=0)


def test_second_derivatives_are_exact_or_raise_an_error() -> None:
    x = normal(2, 5, 3).requires_grad_()
    wide = normal(2, 3, 5).requires_grad_()
    for leaf in (x, wide):
        assert torch.autograd.gradgradcheck(lambda y: log_det(y, a=0.7), leaf)
    flat = low_rank(7, 5, 2).requires_grad_()
    with pytest.raises(ValueError, match=r"second derivatives .* larger eps"):
        torch.autograd.grad(log_det(flat, a=1e14), flat, create_graph=True)


def test_torch_func_transforms_work_or_raise_an_error() -> None:
    x = normal(2, 7, 5)
    want, gradient = log_det(x, a=0.7), log_det_gradient(x, a=0.7)
    torch.testing.assert_close(torch.vmap(lambda y: log_det(y, a=0.7))(x), want)
    torch.testing.assert_close(torch.vmap(lambda y: log_det(y, a=0.7), in_dims=1)(x.movedim(0, 1)), want)
    torch.testing.assert_close(torch.vmap(torch.func.grad(lambda y: log_det(y, a=0.7)))(x), gradient)
    torch.testing.assert_close(torch.vmap(lambda y: log_det(y, a=0.7), in_dims=2)(x.movedim(0, 2)), want)
    each = torch.tensor([0.7, 3.0], dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(lambda y, a: log_det(y, a=a))(x, each), log_det(x, a=each))
    torch.testing.assert_close(torch.vmap(lambda a: log_det(x[0], a=a))(each), log_det(x[[0, 0]], a=each))
    many, two = normal(2, 3, 7, 5), torch.vmap(lambda y, a: log_det(y, a=a))
    torch.testing.assert_close(two(many, each), log_det(many, a=each[:, None].expand(2, 3)))
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda y: log_det(y, a=0.7), (x,), (x,))


def near_rank(seed: int) -> Tensor:
    """Tokens of low rank plus small noise, of uneven lengths, in single precision."""
    size = torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    n, d = (3, 7, 23, 41)[int(4 * size[0])], (2, 3, 5, 17)[int(4 * size[1])]
    lengths = 10 ** (3 * normal(n, 1, seed=seed) * (size[2] > 0.5))
    noise = 10 ** (-8 * size[3])
    tokens = lengths * (normal(n, 1 + d // 2, seed=seed) @ normal(1 + d // 2, d, seed=seed + 1))
    tokens = tokens + noise * normal(n, d, seed=seed + 2)
    return (tokens / tokens.norm()).float()


def test_inaccurate_factors_are_rejected() -> None:
    """A small pivot magnifies the errors of later pivots, which then look accurate."""
    wrong = passed = 0
    for seed in range(400):
        x, a = near_rank(seed), 10.0 ** (seed % 13)
        want = float(torch.log1p(a * torch.linalg.svdvals(x.double()).square()).sum())
        assert abs(float(log_det(x, a=a)) / want - 1) < 2 * LOST[torch.float32]
        result = logdet._factorise(a * (x.mT @ x), torch.float32)
        passed += bool(result.exact)
        wrong += abs(float(result.value) / want - 1) > 2 * LOST[torch.float32]
    assert passed > 100
    assert wrong > 20


def test_scaling_by_a_does_not_round_tokens_again() -> None:
    """Low-rank tokens in single precision with `a` so large that the rate is that of their rounding errors."""
    x = low_rank(7, 5, 2).float()
    for a in (1e13, 3e13, 7e17):
        want = torch.log1p(a * torch.linalg.svdvals(x.double()).square()).sum()
        assert abs(float(log_det(x, a=a)) / float(want) - 1) < LOST[torch.float32]
        rounded = log_det(x * torch.tensor(a).sqrt())
        assert abs(float(rounded) / float(want) - 1) > LOST[torch.float32]


def test_a_with_gradient_raises_an_error() -> None:
    with pytest.raises(ValueError, match="expected a without gradient"):
        log_det(normal(2, 7, 5), a=torch.ones(2, requires_grad=True))


@DTYPES
def test_extreme_numbers_are_exact(dtype: torch.dtype) -> None:
    for size in (0.0, 1e-15, 1e30):
        x = (normal(7, 5) * size).to(dtype)
        values = torch.linalg.svdvals(x.double() / (size or 1)) * size
        want = torch.where(values > 1, 2 * values.log(), values.square().log1p()).sum()
        assert abs(float(log_det(x)) - float(want)) <= LOST[dtype] * float(want)
        assert bool(log_det_gradient(x).isfinite().all())
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="NaN or infinity"):
            log_det(torch.full((3, 2), bad, dtype=dtype))


def test_log_det_of_a_gram_matrix() -> None:
    x = normal(2, 31, 7)
    torch.testing.assert_close(log_det_of_gram(x.mT @ x, a=0.3), log_det(x, a=0.3))
    flat = torch.stack([low_rank(31, 7, 2), normal(31, 7)])
    torch.testing.assert_close(log_det_of_gram(flat.mT @ flat, a=1e10), log_det(flat, a=1e10), rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="finite matrix"):
        log_det_of_gram(torch.full((2, 2), torch.nan), a=1.0)


@DTYPES
def test_log_det_by_known_products_uses_tokens_only_if_it_must(dtype: torch.dtype) -> None:
    """The first item is solved by its factor, the others need the tokens."""
    x = torch.stack([normal(31, 7), *(low_rank(31, 7, 2, seed=seed) for seed in (3, 5))]).to(dtype)
    a = torch.tensor([0.1, 1e7, 1e26], dtype=torch.float64)
    before = (x.mT @ x).clone()
    gram, calls = before.clone(), []
    got = log_det_by_gram(gram, lambda: calls.append(1) or x, a=a)
    torch.testing.assert_close(got, log_det(x, a=a), rtol=tolerance(dtype), atol=0)
    assert len(calls) == 1
    assert torch.equal(gram, before)
    assert log_det_by_gram(gram[:1], pytest.fail, a=a[:1]) == got[0]


def test_autograd_and_explicit_gradients_agree_where_single_precision_fails() -> None:
    z = low_rank(n=67, d=31, rank=3).float().requires_grad_()
    for a in (1.0, 1e3, 1e5):
        (plain,) = torch.autograd.grad(log_det(z, a=a), z)
        (recorded,) = torch.autograd.grad(log_det(z, a=a), z, create_graph=True)
        transformed = torch.func.grad(lambda x, a=a: log_det(x, a=a))(z.detach())
        for other in (recorded.detach(), transformed):
            assert float((other - plain).norm() / plain.norm()) <= 1e-4


def test_small_tokens_have_second_derivatives() -> None:
    for x in (torch.zeros(5, 3), 1e-3 * normal(5, 3)):
        hessian = torch.autograd.functional.hessian(lambda y: log_det(y, a=0.5), x.double())
        expected = torch.eye(15, dtype=torch.float64).reshape(
            5, 3, 5, 3
        )  # the gradient is 2 a x, up to terms in the square of the tokens
        torch.testing.assert_close(hessian, expected, atol=1e-4, rtol=0)
