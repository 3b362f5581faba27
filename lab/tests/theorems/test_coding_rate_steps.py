"""Steps of attention: each follows its formula, and changes the coding rate as the theory predicts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate, subspace_rates
from clearhead_lab.theorems.coding_rate.steps import (
    TokenDistribution,
    draw_bases,
    draw_tokens,
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


def random_tokens(seed: int, distribution: TokenDistribution = TokenDistribution.ISOTROPIC) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bases = draw_bases(3, 13, 2, generator=generator)
    return draw_tokens(distribution, bases, trials=2, n=31, generator=generator), bases


def raw(z: Tensor, bases: Tensor, eps: float) -> Tensor:
    return subspace_rates(z, bases, eps=eps).sum(dim=-1)


def test_attention_equals_a_loop_over_tokens() -> None:
    z, bases = random_tokens(0)
    for sharpness in (1.0, 3.0):
        expected = torch.zeros_like(z)
        for trial in range(2):
            for i in range(31):
                for basis in bases:
                    v = z[trial] @ basis
                    weights = (sharpness * v @ v[i]).exp()
                    expected[trial, i] += basis @ (weights @ v / weights.sum())
        torch.testing.assert_close(subspace_attention(z, bases, sharpness=sharpness), expected)
    v = z @ bases[0]
    torch.testing.assert_close(linear_attention(z, bases[:1]), v @ v.mT @ v @ bases[0].T)


def test_steps_follow_their_formulas() -> None:
    z, bases = random_tokens(1)
    a = 2 / (31 * 0.09)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(raw(leaf, bases, 0.3).sum(), leaf)
    torch.testing.assert_close(exact_step(z, bases, rate=0.5, eps=0.3), z - 0.5 / a * gradient)
    projected = sum(z @ basis @ basis.T for basis in bases)
    expected = z - 0.5 / a * (a * projected - a**2 * linear_attention(z, bases))
    torch.testing.assert_close(neumann_step(z, bases, rate=0.5, eps=0.3), expected)
    attended = subspace_attention(z, bases)
    torch.testing.assert_close(paper_step(z, bases, rate=0.5, eps=0.3), 0.5 * z + 0.5 * a * attended)
    torch.testing.assert_close(released_step(z, bases, rate=0.5, sharpness=1.0), z + 0.5 * attended)


@given(seeds)
def test_the_neumann_step_is_first_order_in_the_gradient(seed: int) -> None:
    """Its relative error falls with a."""
    z, bases = random_tokens(seed)

    def error(eps: float) -> float:
        exact, first = (step(z, bases, rate=1.0, eps=eps) for step in (exact_step, neumann_step))
        return float((exact - first).norm() / (exact - z).norm())

    assert float(expansion_ratio(z, bases, eps=3.0).max()) < 1
    assert error(30.0) < error(3.0) / 5e3
    assert error(0.1) > 1


@given(seeds, st.sampled_from(list(TokenDistribution)), st.sampled_from([1.0, 0.3]))
def test_attention_ascends_the_raw_rate(seed: int, distribution: TokenDistribution, eps: float) -> None:
    """<grad R^c, linear attention> = a sum tr((I + a V^T V)^-1 (V^T V)^2) > 0: only the shrinking lowers R^c."""
    z, bases = random_tokens(seed, distribution)
    a = 2 / (31 * eps**2)
    gradient = z - exact_step(z, bases, rate=a, eps=eps)
    inner = (gradient * linear_attention(z, bases)).sum(dim=(-2, -1))
    gram = (z.unsqueeze(-3) @ bases).mT @ (z.unsqueeze(-3) @ bases)
    expected = a * torch.linalg.solve(torch.eye(2) + a * gram, gram @ gram).diagonal(dim1=-2, dim2=-1).sum(dim=(-2, -1))
    torch.testing.assert_close(inner, expected)
    assert inner.min() > 0
    assert (raw(z + 1e-3 * linear_attention(z, bases), bases, eps) > raw(z, bases, eps)).all()


def test_the_expansion_ratio_is_that_of_the_largest_singular_value() -> None:
    z, bases = random_tokens(2)
    largest = torch.stack([torch.linalg.svdvals(z @ basis)[:, 0] for basis in bases]).amax(dim=0)
    torch.testing.assert_close(expansion_ratio(z, bases, eps=0.3), 2 / (31 * 0.09) * largest.square())


def test_the_hook_does_not_depend_on_sizes() -> None:
    """Neither on those of tokens nor on those of their projections."""
    z, bases = random_tokens(3)
    normed = (z - z.mean(dim=-1, keepdim=True)) / z.std(dim=-1, correction=0, keepdim=True)
    heads = [normed @ basis for basis in bases]
    expected = sum(coding_rate(v / v.norm(dim=-1, keepdim=True), eps=0.1) for v in heads)
    torch.testing.assert_close(hook_rate(z, bases), expected)
    sizes = torch.rand(2, 31, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.5
    torch.testing.assert_close(hook_rate(sizes * z, bases), hook_rate(z, bases))
    assert (raw(sizes * z, bases, 0.1) - raw(z, bases, 0.1)).abs().min() > 0.1


def test_random_tokens_and_bases() -> None:
    z, bases = random_tokens(4, TokenDistribution.IN_SUBSPACES)
    torch.testing.assert_close(z.norm(dim=-1), torch.ones(2, 31, dtype=torch.float64))
    flat = bases.movedim(0, 1).flatten(1)
    torch.testing.assert_close(flat.T @ flat, torch.eye(6, dtype=torch.float64))
    generator = torch.Generator().manual_seed(5)
    noiseless = draw_tokens(TokenDistribution.IN_SUBSPACES, bases, trials=2, n=31, noise=0.0, generator=generator)
    shares = (noiseless.unsqueeze(-3) @ bases).square().sum(dim=-1)
    torch.testing.assert_close(shares.amax(dim=-2), torch.ones(2, 31, dtype=torch.float64))
    with pytest.raises(ValueError, match="k p <= d"):
        draw_bases(3, 5, 2, generator=generator)
