"""Principal component pursuit recovers the low-rank and sparse parts; with the misprinted sign it does not."""

import math

import pytest
import torch
from torch import Tensor

from clearhead.shapes import ShapeError
from clearhead_lab.theorems.kernel_pca.pursuit import principal_component_pursuit


def low_rank_plus_sparse(
    *, seed: int = 0, n: int = 60, m: int = 60, rank: int = 4, share: float = 0.05
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    low_rank = normal(n, rank) @ normal(rank, m)
    spoiled = torch.rand(n, m, generator=generator) < share
    return low_rank, torch.where(spoiled, 10 * normal(n, m), 0)


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


@pytest.mark.parametrize("seed", range(5))
def test_low_rank_and_sparse_parts_are_recovered(seed: int) -> None:
    low_rank, sparse = low_rank_plus_sparse(seed=seed)
    result = principal_component_pursuit(low_rank + sparse)
    assert result.converged
    assert relative_error(result.low_rank, low_rank) <= 1e-6
    assert relative_error(result.sparse, sparse) <= 1e-6
    assert torch.linalg.matrix_rank(result.low_rank, rtol=1e-6) == 4


@pytest.mark.parametrize("seed", range(3))
def test_the_misprinted_sign_recovers_the_sum_but_not_the_parts(seed: int) -> None:
    low_rank, sparse = low_rank_plus_sparse(seed=seed)
    result = principal_component_pursuit(low_rank + sparse, dual_sign=-1)
    assert result.converged  # the wrong variant converges too, so convergence does not reveal the misprint
    assert relative_error(result.low_rank, low_rank) > 1
    assert relative_error(result.sparse, sparse) > 1


def test_the_solution_is_optimal() -> None:
    """Y is a subgradient of both norms: spectral norm at most one, and lambda times the sign where S is not 0."""
    low_rank, sparse = low_rank_plus_sparse(n=47, m=31, rank=3)
    result = principal_component_pursuit(low_rank + sparse, tolerance=1e-9)
    weight = 1 / math.sqrt(47)
    assert torch.linalg.svdvals(result.dual).amax() <= 1 + 1e-5
    assert result.dual.abs().amax() <= weight * (1 + 1e-5)
    nonzero = result.sparse != 0
    torch.testing.assert_close(result.dual[nonzero], weight * result.sparse.sign()[nonzero], rtol=1e-4, atol=1e-6)
    u, values, v = torch.linalg.svd(result.low_rank, full_matrices=False)
    kept = values > 1e-6 * values[0]
    torch.testing.assert_close(u.mT[kept] @ result.dual @ v.mT[:, kept], torch.eye(3).double(), rtol=1e-4, atol=1e-4)


def test_zero_single_entry_and_invalid_matrices() -> None:
    nothing = principal_component_pursuit(torch.zeros(3, 5))
    assert nothing.converged
    assert not nothing.low_rank.any()
    one = principal_component_pursuit(torch.tensor([[2.0]]))
    assert (one.low_rank + one.sparse).item() == pytest.approx(2.0)
    short = principal_component_pursuit(sum(low_rank_plus_sparse()), iterations=2)
    assert (short.iterations, short.converged) == (2, False)
    assert principal_component_pursuit(torch.ones(3, 5, dtype=torch.float16)).low_rank.dtype is torch.float16
    with pytest.raises(ShapeError, match=r"matrix \(n, m\).*got \(0, 5\)"):
        principal_component_pursuit(torch.zeros(0, 5))
    with pytest.raises(ValueError, match="finite"):
        principal_component_pursuit(torch.full((3, 5), torch.inf))
