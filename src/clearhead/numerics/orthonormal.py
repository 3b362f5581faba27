"""Orthonormal bases of random matrices."""

import torch
from torch import Tensor

from clearhead.shapes import Float

TALL = 4
"""Ratio of rows to columns from which on a Gaussian matrix is well conditioned: (1 + 1/2) / (1 - 1/2) = 3 for many."""


def orthonormal_columns(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return Q of X = Q R, n >= d, where R has a positive diagonal, for Gaussian X.

    R of a tall X is the Cholesky factor of X^T X: a fifth of the time of reflections. The columns are orthonormal up to
    rounding times the squared condition number of X, which is small for tall Gaussian X alone.
    """
    n, d = x.shape[-2:]
    if n >= TALL * d:
        upper, info = torch.linalg.cholesky_ex(x.mT @ x, upper=True)
        if not bool(info.any()):
            solved: Tensor = torch.linalg.solve_triangular(upper, x, upper=True, left=False)
            return solved
    basis, triangular = torch.linalg.qr(x)
    signed: Tensor = basis * triangular.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return signed
