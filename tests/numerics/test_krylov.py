"""Eigenpairs of an operator given by its products: accurate if reported as converged, and not reported otherwise."""

import pytest
import torch
from torch import Tensor

from clearhead.numerics.eigenpairs import BLOCKS, krylov_eigenpairs
from clearhead.numerics.precision import tolerance

COUNT, WIDTH = 5, 11


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operator(values: Tensor, seed: int = 1) -> Tensor:
    """A symmetric matrix with the given eigenvalues, largest first."""
    vectors = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
    return vectors * values @ vectors.mT


def decaying(n: int = 211, power: float = 1.0) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64) ** -power


class Counted:
    """A product that counts its calls."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.calls = matrix, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.matrix @ x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_leading_eigenpairs_are_found(dtype: torch.dtype, power: float) -> None:
    values = decaying(power=power)
    matrix = operator(values)
    result = krylov_eigenpairs(Counted(matrix.to(dtype)), normal(211, WIDTH).to(dtype), COUNT)
    assert bool(result.converged)
    assert float(((result.values - values[:COUNT]) / values[:COUNT]).abs().max()) <= 1e-6
    assert float((result.vectors.mT @ result.vectors - torch.eye(COUNT)).abs().max()) <= tolerance(dtype)
    actual = (matrix @ result.vectors - result.vectors * result.values).norm(dim=0)
    assert float((actual - result.residual).abs().max()) <= tolerance(dtype)
    assert result.values.dtype is result.vectors.dtype is torch.float64


def test_a_slowly_decaying_spectrum_converges_with_restarts() -> None:
    values = decaying(power=0.1)
    product = Counted(operator(values))
    result = krylov_eigenpairs(product, normal(211, WIDTH), COUNT, most_products=100)
    assert product.calls > BLOCKS
    assert bool(result.converged)
    assert float(((result.values - values[:COUNT]) / values[:COUNT]).abs().max()) <= 1e-6


def test_convergence_is_not_reported_too_early() -> None:
    values = decaying(power=0.1)
    matrix = operator(values)
    for products in (1, 2, 3):
        result = krylov_eigenpairs(Counted(matrix), normal(211, WIDTH), COUNT, most_products=products)
        wrong = float(((result.values - values[:COUNT]) / values[:COUNT]).abs().max())
        assert wrong > 1e-6
        assert not bool(result.converged)
        actual = (matrix @ result.vectors - result.vectors * result.values).norm(dim=0)
        assert float((actual - result.residual).abs().max()) <= tolerance(torch.float64)
        assert float(actual.max()) > 1e-3


def test_a_flat_spectrum_does_not_converge() -> None:
    matrix = operator(1 + 1e-3 * torch.rand(211, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    result = krylov_eigenpairs(Counted(matrix), normal(211, WIDTH), COUNT, most_products=9)
    assert not bool(result.converged)
    assert float(result.residual.max()) > 1e-6


def test_a_small_operator_is_solved_exactly() -> None:
    values = 1 + decaying(23)
    result = krylov_eigenpairs(Counted(operator(values)), normal(23, WIDTH), COUNT)
    assert bool(result.converged)
    assert float((result.values - values[:COUNT]).abs().max()) <= tolerance(torch.float64, terms=211)


def test_low_rank_operators_converge() -> None:
    values = torch.cat([decaying(7), torch.zeros(204, dtype=torch.float64)])
    result = krylov_eigenpairs(Counted(operator(values)), normal(211, WIDTH), COUNT)
    assert bool(result.converged)
    assert float((result.values - values[:COUNT]).abs().max()) <= tolerance(torch.float64, terms=211)


def test_a_good_guess_saves_products() -> None:
    matrix = operator(decaying(power=0.5))
    guessed, blind = Counted(matrix), Counted(matrix)
    krylov_eigenpairs(guessed, torch.linalg.eigh(matrix).eigenvectors[:, -WIDTH:] + 1e-3 * normal(211, WIDTH), COUNT)
    krylov_eigenpairs(blind, normal(211, WIDTH), COUNT)
    assert guessed.calls < blind.calls
