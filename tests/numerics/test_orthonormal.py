"""Orthonormal columns of Gaussian matrices."""

import pytest
import torch

from clearhead.numerics.precision import tolerance
from clearhead.numerics.spectrum import orthonormal_columns


@pytest.mark.parametrize("shape", [(3, 31, 7), (2, 11, 7), (5, 5)])
def test_columns_are_q_of_the_decomposition_with_a_positive_diagonal(shape: tuple[int, ...]) -> None:
    """For tall matrices, and for those that a Cholesky factor would not make orthonormal."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = orthonormal_columns(x)
    eye = torch.eye(shape[-1], dtype=torch.float64).expand_as(q.mT @ q)
    torch.testing.assert_close(q.mT @ q, eye, rtol=0, atol=tolerance(torch.float64))
    r = q.mT @ x
    assert float(r.tril(-1).abs().max()) < tolerance(torch.float64, terms=x.shape[-2])
    assert bool((r.diagonal(dim1=-2, dim2=-1) > 0).all())
    torch.testing.assert_close(q @ r, x)


def test_a_tall_matrix_that_has_no_cholesky_factor_is_decomposed() -> None:
    x = torch.ones(31, 5, dtype=torch.float64)
    x[:, 0] = 0
    q = orthonormal_columns(x)
    assert bool(torch.isfinite(q).all())
    assert float(q[:, 1].norm()) == pytest.approx(1)
