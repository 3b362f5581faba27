"""Energies of keys in spans of values equal their definition, for every variant, shape and number of threads."""

import dataclasses

import pytest
import torch
from torch import Tensor

from clearhead.kernels import calls
from clearhead.kernels.library import INSTRUCTIONS, Kernel
from clearhead.numerics.precision import tolerance
from clearhead.theories.kernel_pca.captured import _energies

SHAPES = [(1, 1, 1, 2), (2, 3, 1, 5), (3, 2, 7, 11), (1, 5, 13, 17), (2, 2, 16, 31), (1, 3, 29, 83), (1, 2, 67, 131)]
"""Heads, draws, width of the values, tokens."""


def drawn(h: int, t: int, e: int, m: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return values, a kernel of keys, and two factors for each token."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(h, t, e, m, generator=generator, dtype=torch.float64)
    keys = torch.randn(h, m, 5, generator=generator, dtype=torch.float64)
    lengths, factors = torch.rand(2, h, m, generator=generator, dtype=torch.float64) + 0.1
    return values, torch.exp(-torch.cdist(keys, keys).square() / 4), lengths, factors


def by_definition(values: Tensor, kernels: Tensor, lengths: Tensor, factors: Tensor) -> Tensor:
    """Return tr[(W K W^T)^-1 C C^T] by the inverse."""
    w = values * lengths[:, None, None]
    product = w @ kernels.unsqueeze(1)
    c = product * factors[:, None, None]
    c = c - c.mean(dim=-1, keepdim=True)
    inverse = torch.linalg.inv(w @ product.mT)
    return (inverse @ c @ c.mT).diagonal(dim1=-2, dim2=-1).sum(dim=-1)


@pytest.fixture(params=list(INSTRUCTIONS))
def variant(compiled: Kernel, request: pytest.FixtureRequest) -> Kernel:
    """Return the kernel with each instruction set of this processor."""
    if not compiled.handle.clearhead_instructions() & INSTRUCTIONS[request.param]:
        pytest.skip(f"this processor does not have {request.param}")
    return dataclasses.replace(compiled, instructions=request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_energies_and_pivots(variant: Kernel, shape: tuple[int, int, int, int]) -> None:
    operands = drawn(*shape)
    energies, pivots = calls.span_energies(variant, *operands)
    expected, of_torch = _energies(*operands)
    # The inverse loses digits by the condition number, which the squared pivots bound from below.
    allowed = tolerance(torch.float64, terms=shape[3]) / of_torch.min().item()
    torch.testing.assert_close(energies, expected, rtol=allowed, atol=0)
    torch.testing.assert_close(pivots, of_torch, rtol=allowed, atol=0)
    torch.testing.assert_close(energies, by_definition(*operands), rtol=100 * allowed, atol=0)
    other = drawn(*shape, seed=1)
    assert not torch.allclose(energies, by_definition(other[0], *operands[1:]), rtol=100 * allowed) or shape[3] == 2


def test_the_span_alone_counts(variant: Kernel) -> None:
    """Mixing values within a draw changes nothing; a factor for each token does."""
    values, *others = drawn(2, 3, 7, 23)
    mix = torch.randn(7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    energies, _ = calls.span_energies(variant, values, *others)
    mixed, _ = calls.span_energies(variant, mix @ values, *others)
    torch.testing.assert_close(mixed, energies, rtol=1e-9, atol=0)
    scaled, _ = calls.span_energies(variant, values * torch.linspace(0.5, 2, 23, dtype=torch.float64), *others)
    assert ((scaled / energies - 1).abs() > 1e-3).all()


def test_strides_and_threads(variant: Kernel) -> None:
    values, *others = drawn(2, 5, 7, 23)
    expected = calls.span_energies(variant, values, *others)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3, 7):
            torch.set_num_threads(count)
            for strided in (values.transpose(0, 2).contiguous().transpose(0, 2), values.mT.contiguous().mT):
                got = calls.span_energies(variant, strided, *(x.mT.contiguous().mT for x in others))
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            shared = calls.span_energies(variant, values[:, :1].expand(-1, 5, -1, -1), *others)
            assert torch.equal(shared[0], expected[0][:, :1].expand(-1, 5))
    finally:
        torch.set_num_threads(threads)


def test_dependent_values_have_no_pivot(variant: Kernel) -> None:
    values, *others = drawn(1, 4, 11, 29)
    values[0, 1, 9] = values[0, 1, 2] - values[0, 1, 5]
    values[0, 2, 4] = 0
    values[0, 3, 3, 7] = torch.nan
    _, pivots = calls.span_energies(variant, values, *others)
    assert pivots[0, 0] > 1e-3
    assert not (pivots[0, 1:] > 1e-10).any()


def test_no_draws_and_no_heads(variant: Kernel) -> None:
    for h, t in ((0, 3), (2, 0)):
        energies, pivots = calls.span_energies(variant, *drawn(h, t, 3, 5))
        assert energies.shape == pivots.shape == (h, t)
