"""Subspace attention and the derived step: the contract, references, and properties of each."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.precision import tolerance
from clearhead.operators import subspace_attention, subspace_step
from clearhead.operators.softmax import slow_softmax_attention
from clearhead.operators.subspace import slow_subspace_attention, slow_subspace_step
from clearhead.shapes import ShapeError, check_attention_operands
from clearhead.testing import OPERATOR_CHECKS, OperatorSubject
from tests.operators.contract import run_check
from tests.operators.paths import PATHS, forced

PRIMES = st.sampled_from([2, 3, 5, 7, 11, 13])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthonormal(k: int, d: int, p: int, *, seed: int = 0) -> Tensor:
    """k bases of p directions each; all k p directions are orthonormal if k p is at most the width."""
    if k * p <= d:
        return torch.linalg.qr(normal(d, k * p, seed=seed)).Q.reshape(d, k, p).movedim(1, 0)
    return torch.linalg.qr(normal(k, d, p, seed=seed)).Q


def relative(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def within_values(attention, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The operator as the contract calls operators: queries and keys only need the right shape."""
    check_attention_operands(q, k, v, mask=mask)
    if q.shape[-2] != k.shape[-2]:
        raise ShapeError(f"expected n = m; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    return attention(v, mask=mask)


SUBJECT = OperatorSubject(
    operator=lambda *operands, **options: within_values(subspace_attention, *operands, **options),
    reference=lambda *operands, **options: within_values(slow_subspace_attention, *operands, **options),
    square=True,
    terms=13,
)


@pytest.mark.parametrize("check", OPERATOR_CHECKS)
def test_contract(check: str, typechecked: bool) -> None:
    run_check(check, SUBJECT, typechecked=typechecked)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [None, 1.0])
def test_a_projected_token_is_query_key_and_value(path: str, scale: float | None) -> None:
    v = normal(2, 3, 17, 5, dtype=torch.float32)
    with forced(path):
        got = subspace_attention(v, scale=scale)
    within = tolerance(torch.float32)
    assert relative(got, slow_softmax_attention(v, v, v, scale=scale)) <= within
    assert relative(got, slow_softmax_attention(-v, v, v, scale=scale)) > 100 * within  # a query of its own


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=20)
@given(st.lists(PRIMES, min_size=4, max_size=4, unique=True), st.integers(0, 2**31))
def test_the_step_and_its_reference_agree_forward_and_backward(dtype: torch.dtype, sizes: list[int], seed: int) -> None:
    k, n, d, p = sizes
    tokens, bases = normal(3, n, d, seed=seed, dtype=dtype), normal(k, d, p, seed=seed + 1, dtype=dtype) / d**0.5
    along = normal(3, n, d, seed=seed + 2, dtype=dtype)
    results = []
    for step in (subspace_step, slow_subspace_step):
        leaves = tokens.clone().requires_grad_(), bases.clone().requires_grad_()
        out = step(*leaves, length=0.3, eps=0.7, scale=0.5)
        results.append([out.detach(), *torch.autograd.grad((out * along).sum(), leaves)])
    for got, want in zip(*results, strict=True):
        assert relative(got, want) <= 4 * tolerance(dtype, terms=k * n * d)


def test_tokens_with_equal_scores_move_to_the_mean() -> None:
    """With scale 0 every weight is 1/n, and bases that span the space sum to the identity."""
    z, bases, t, a = normal(2, 7, 6, seed=1), orthonormal(3, 6, 2), 0.3, 2 / (7 * 0.25)
    want = (1 - t) * z + t * a * z.mean(dim=-2, keepdim=True)
    assert relative(subspace_step(z, bases, length=t, scale=0.0), want) <= tolerance(torch.float64)
    assert relative(subspace_step(z, bases, length=t), want) > 0.01
    assert relative(subspace_step(z, bases[:2], length=t, scale=0.0), want) > 0.01  # they do not span the space


def test_tokens_that_attend_only_to_themselves_keep_their_direction() -> None:
    z, bases, t, a = torch.eye(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)[None], 0.3, 6 / (6 * 0.25)
    assert relative(subspace_step(z, bases, length=t, scale=1e3), (1 - t + t * a) * z) <= tolerance(torch.float64)
    assert relative(subspace_step(z, bases, length=t, scale=1e-3), (1 - t + t * a) * z) > 0.1


def test_rotating_tokens_and_bases_rotates_the_output() -> None:
    z, bases, turn = normal(2, 7, 11, seed=1), normal(3, 11, 5, seed=2), torch.linalg.qr(normal(11, 11, seed=3)).Q
    want = subspace_step(z, bases, length=0.3) @ turn
    assert relative(subspace_step(z @ turn, turn.mT @ bases, length=0.3), want) <= tolerance(torch.float64, terms=256)
    assert relative(subspace_step(z @ turn, bases, length=0.3), want) > 0.01


def _rate(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return the rate of the projected tokens, summed over subspaces, from eigenvalues."""
    p, n = bases.shape[-1], z.shape[-2]
    projected = torch.einsum("nd,kdp->knp", z, bases)
    return torch.log1p(p / (n * eps**2) * torch.linalg.eigvalsh(projected.mT @ projected)).sum().item() / 2


def test_the_step_lowers_the_rate_and_attention_alone_raises_it() -> None:
    """The shrinking term lowers the rate; the step of the released code, Z + SSA, raises it."""
    for seed in range(20):
        z, bases = normal(23, 12, seed=seed), orthonormal(3, 12, 4, seed=seed + 100)
        before = _rate(z, bases, 0.5)
        assert _rate(subspace_step(z, bases, length=0.1), bases, 0.5) < before
        attended = subspace_step(z, bases, length=1.0)  # without the tokens themselves: attention alone
        assert _rate(z + 0.1 * attended, bases, 0.5) > before


def test_a_single_token_attends_to_itself() -> None:
    z, bases = normal(1, 6), orthonormal(3, 6, 2)
    want = (0.7 + 0.3 * 2 / 0.25) * z
    assert relative(subspace_step(z, bases, length=0.3), want) <= tolerance(torch.float64)


@pytest.mark.parametrize("step", [subspace_step, slow_subspace_step])
def test_invalid_operands_raise_an_error(step, typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the import hook refuses some of these before the function can")
    for z, bases in (
        (normal(7, 5), normal(3, 6, 2)),
        (normal(5), normal(3, 5, 2)),
        (normal(7, 5), normal(5, 2)),
        (normal(0, 5), normal(3, 5, 2)),
    ):
        with pytest.raises(ShapeError, match=r"expected tokens z .* got z \(.*bases \("):
            step(z, bases, length=0.1)
    with pytest.raises(ValueError, match=r"one floating dtype; got torch.float64 and torch.float32"):
        step(normal(7, 5), normal(3, 5, 2).float(), length=0.1)
