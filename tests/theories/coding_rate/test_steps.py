"""Steps of attention on coding rates: each is what its formula says, and moves the rate as the theory says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate, subspace_rates
from clearhead.theories.coding_rate.drawn import Kind, draw_bases, draw_tokens
from clearhead.theories.coding_rate.steps import (
    exact_step,
    expansion_ratio,
    hook_rate,
    linear_attention,
    neumann_step,
    paper_step,
    released_step,
    subspace_attention,
)

seeds = st.integers(0, 2**31)


def drawn(seed: int, kind: Kind = Kind.ISOTROPIC) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bases = draw_bases(3, 13, 2, generator=generator)
    return draw_tokens(kind, bases, trials=2, n=31, generator=generator), bases


def raw(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return subspace_rates(z, bases, eps=eps).sum(dim=-1)


def test_attention_is_one_token_at_a_time() -> None:
    z, bases = drawn(0)
    for sharpness in (1.0, 3.0):
        want = torch.zeros_like(z)
        for trial in range(2):
            for i in range(31):
                for basis in bases:
                    v = z[trial] @ basis
                    weights = (sharpness * v @ v[i]).exp()
                    want[trial, i] += basis @ (weights @ v / weights.sum())
        torch.testing.assert_close(subspace_attention(z, bases, sharpness=sharpness), want)
    v = z @ bases[0]
    torch.testing.assert_close(linear_attention(z, bases[:1]), v @ v.mT @ v @ bases[0].T)


def test_steps_are_their_formulas() -> None:
    z, bases = drawn(1)
    a = 2 / (31 * 0.09)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(raw(leaf, bases, 0.3).sum(), leaf)
    torch.testing.assert_close(exact_step(z, bases, rate=0.5, eps=0.3), z - 0.5 / a * gradient)
    within = sum(z @ basis @ basis.T for basis in bases)
    want = z - 0.5 / a * (a * within - a**2 * linear_attention(z, bases))
    torch.testing.assert_close(neumann_step(z, bases, rate=0.5, eps=0.3), want)
    attended = subspace_attention(z, bases)
    torch.testing.assert_close(paper_step(z, bases, rate=0.5, eps=0.3), 0.5 * z + 0.5 * a * attended)
    torch.testing.assert_close(released_step(z, bases, rate=0.5, sharpness=1.0), z + 0.5 * attended)


@given(seeds)
def test_the_first_order_is_one_of_the_gradient(seed: int) -> None:
    """Its error falls with the square of a, where the gradient itself falls with a."""
    z, bases = drawn(seed)

    def error(eps: float) -> float:
        exact, first = (step(z, bases, rate=1.0, eps=eps) for step in (exact_step, neumann_step))
        return float((exact - first).norm() / (exact - z).norm())

    assert float(expansion_ratio(z, bases, eps=3.0).max()) < 1
    assert error(30.0) < error(3.0) / 5e3
    assert error(0.1) > 1


@given(seeds, st.sampled_from(list(Kind)), st.sampled_from([1.0, 0.3]))
def test_attention_is_ascent_on_the_raw_rate(seed: int, kind: Kind, eps: float) -> None:
    """<grad R^c, linear attention> = a sum tr((I + a V^T V)^-1 (V^T V)^2) > 0: what falls is the shrinking's."""
    z, bases = drawn(seed, kind)
    a = 2 / (31 * eps**2)
    downwards = z - exact_step(z, bases, rate=a, eps=eps)
    inner = (downwards * linear_attention(z, bases)).sum(dim=(-2, -1))
    gram = (z.unsqueeze(-3) @ bases).mT @ (z.unsqueeze(-3) @ bases)
    want = a * torch.linalg.solve(torch.eye(2) + a * gram, gram @ gram).diagonal(dim1=-2, dim2=-1).sum(dim=(-2, -1))
    torch.testing.assert_close(inner, want)
    assert inner.min() > 0
    assert (raw(z + 1e-3 * linear_attention(z, bases), bases, eps) > raw(z, bases, eps)).all()


def test_the_ratio_is_that_of_the_largest_singular_value() -> None:
    z, bases = drawn(2)
    largest = torch.stack([torch.linalg.svdvals(z @ basis)[:, 0] for basis in bases]).amax(dim=0)
    torch.testing.assert_close(expansion_ratio(z, bases, eps=0.3), 2 / (31 * 0.09) * largest.square())


def test_the_hook_sees_no_size() -> None:
    """Neither of tokens nor of what a head has of them."""
    z, bases = drawn(3)
    normed = (z - z.mean(dim=-1, keepdim=True)) / z.std(dim=-1, correction=0, keepdim=True)
    heads = [normed @ basis for basis in bases]
    want = sum(coding_rate(v / v.norm(dim=-1, keepdim=True), eps=0.1) for v in heads)
    torch.testing.assert_close(hook_rate(z, bases), want)
    sizes = torch.rand(2, 31, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.5
    torch.testing.assert_close(hook_rate(sizes * z, bases), hook_rate(z, bases))
    assert (raw(sizes * z, bases, 0.1) - raw(z, bases, 0.1)).abs().min() > 0.1


def test_draws() -> None:
    z, bases = drawn(4, Kind.IN_SUBSPACES)
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(2, 31, dtype=torch.float64))
    flat = bases.movedim(0, 1).flatten(1)
    torch.testing.assert_close(flat.T @ flat, torch.eye(6, dtype=torch.float64))
    generator = torch.Generator().manual_seed(5)
    clean = draw_tokens(Kind.IN_SUBSPACES, bases, trials=2, n=31, noise=0.0, generator=generator)
    shares = (clean.unsqueeze(-3) @ bases).square().sum(dim=-1)
    torch.testing.assert_close(shares.amax(dim=-2), torch.ones(2, 31, dtype=torch.float64))
    with pytest.raises(ValueError, match="k p <= d"):
        draw_bases(3, 5, 2, generator=generator)
