r"""Some leading eigenpairs of many symmetric positive semi-definite matrices, without the others.

Each is reduced to tridiagonal form T. Eigenvalues of T come from LAPACK's root-free QR, their vectors from twisted
factorisations (Dhillon and Parlett 2004), which need n steps of a recurrence whatever their number: all vectors of all
matrices go through it together. Close eigenvalues would give vectors that are not orthogonal. That is checked, and such
a matrix is solved again by LAPACK's bisection and inverse iteration, which orthogonalises.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics import lapack
from clearhead.numerics.eigenpairs import Eigenpairs
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Float, check_finite

__all__ = ["all_eigenvalues", "leading_eigenpairs"]

Array = NDArray[np.float64]

LANES = 512
"""How many vectors go through the recurrence together: enough to hide its overhead, few enough to stay in the cache."""
ORTHOGONAL = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The largest inner product of two vectors that pass as orthogonal, by the precision of the reduction."""


def leading_eigenpairs(
    matrix: Float[Tensor, "b n n"], count: int, *, precision: torch.dtype = torch.float64
) -> Eigenpairs:
    """The `count` < n largest eigenvalues of each symmetric matrix in double precision, on the CPU.

    In a `precision` of torch.float32 the reduction, which costs most, is done in single precision. A vector is then
    wrong by about 1e-7 e_1 / gap, and its eigenvalue, as a Rayleigh quotient, by the square of that.
    """
    check_finite("matrices", matrix.detach())
    if not 1 <= count < matrix.shape[-1]:
        raise InputError(f"expected a count of at least 1 and below n = {matrix.shape[-1]}; got {count}")
    stacked: Array = matrix.detach().cpu().double().numpy()
    groups = _groups(stacked, max(1, LANES // count))
    parts = one_thread_each(lambda group: _group(group, count, precision), groups)
    values, vectors, following, residual = (
        torch.from_numpy(np.concatenate([part[i] for part in parts])).to(matrix.device) for i in range(4)
    )
    return Eigenpairs(
        values=values.flip(-1).clamp_min(0),
        vectors=vectors.flip(-1),
        following=following.clamp_min(0),
        residual=residual.flip(-1),
        converged=torch.ones(len(matrix), dtype=torch.bool, device=matrix.device),
    )


def all_eigenvalues(matrix: Float[Tensor, "b n n"]) -> Float[Tensor, "b n"]:
    """Every eigenvalue of each symmetric matrix, largest first, in double precision on the CPU, and no vector."""
    check_finite("matrices", matrix.detach())
    stacked: Array = matrix.detach().cpu().double().numpy()
    n = stacked.shape[-1]
    if n < 2 or not len(stacked):
        return matrix.detach().double().diagonal(dim1=-2, dim2=-1)
    values = one_thread_each(_values, list(stacked))
    return torch.from_numpy(np.stack(values)[:, ::-1].copy()).to(matrix.device)


def _values(matrix: Array) -> Array:
    reduced = lapack.reduce(matrix)
    return lapack.eigenvalues_of_tridiagonal(reduced.diagonal, reduced.beside)


def _groups(matrices: Array, most: int) -> list[Array]:
    """As many for every thread, and at most `most` in each."""
    rounds = max(1, math.ceil(len(matrices) / (most * torch.get_num_threads())))
    return np.array_split(matrices, min(rounds * torch.get_num_threads(), max(len(matrices), 1)))


def _group(matrices: Array, count: int, precision: torch.dtype) -> tuple[Array, Array, Array, Array]:
    """Values, smallest first, vectors, the value before the first, and residuals."""
    n = matrices.shape[-1]
    given = matrices.astype(np.float32) if precision is torch.float32 else matrices
    reduced = [lapack.reduce(matrix) for matrix in given]
    diagonal = np.stack([one.diagonal for one in reduced]).astype(np.float64)
    beside = np.stack([one.beside for one in reduced]).astype(np.float64)
    energy = np.stack([lapack.eigenvalues_of_tridiagonal(d, e) for d, e in zip(diagonal, beside, strict=True)])
    small = _twisted(diagonal, beside, energy[:, -count:])
    values, residual = np.empty((len(matrices), count)), np.empty((len(matrices), count))
    vectors = np.empty((len(matrices), n, count))
    for i, one in enumerate(reduced):
        vectors[i] = lapack.rotate_back(one, small[i]).T
        overlap = vectors[i].T @ vectors[i]
        length = np.sqrt(overlap.diagonal())
        vectors[i] /= length
        overlap -= np.diag(overlap.diagonal())
        if not np.abs(overlap).max() <= ORTHOGONAL[precision]:
            vectors[i] = eigh(matrices[i], subset_by_index=(n - count, n - 1), check_finite=False)[1]
        values[i], residual[i] = _quotients(matrices[i], vectors[i])
    return values, vectors, energy[:, -count - 1], residual


def _quotients(matrix: Array, vectors: Array) -> tuple[Array, Array]:
    """Rayleigh quotients of unit vectors, and how far each is from an eigenpair."""
    product = matrix @ vectors
    values: Array = (vectors * product).sum(axis=0)
    product -= vectors * values
    residual: Array = np.sqrt(np.square(product, out=product).sum(axis=0))
    return values, residual


def _twisted(diagonal: Array, beside: Array, values: Array) -> Array:
    r"""Unit eigenvectors of tridiagonal matrices, (b, r, n), from their eigenvalues.

    T - e I is factored from the top, with pivots p_i, and from the bottom, with pivots m_i. Where p_i + m_i - (d_i - e)
    is smallest the two meet: the vector is 1 there, and each neighbour is the last times -beside / pivot. From the
    bottom is from the top of T turned around: both go through the recurrence together, as lanes side by side.
    """
    (b, r), n = values.shape, diagonal.shape[1]
    half = b * r
    shifted, lanes, factor = np.empty((n, 2 * half)), np.empty((n, 2 * half)), np.empty((n - 1, 2 * half))
    shifted[:, :half].reshape(n, b, r)[:] = diagonal.T[:, :, None] - values
    shifted[:, half:] = shifted[::-1, :half]
    factor[:, :half].reshape(n - 1, b, r)[:] = beside.T[:, :, None]
    factor[:, half:] = factor[::-1, :half]
    square = np.square(factor)
    with np.errstate(all="ignore"):  # a pivot of zero spoils its vector at worst, which is then not orthogonal
        lanes[0] = shifted[0]
        for above, quotient, entry, pivot in zip(lanes[:-1], square, shifted[1:], lanes[1:], strict=True):
            np.divide(quotient, above, quotient)
            np.subtract(entry, quotient, pivot)
        sums = lanes[:, :half] + lanes[::-1, half:]
        sums -= shifted[:, :half]
        meeting = np.abs(sums, out=sums).argmin(axis=0)
        np.divide(factor, lanes[:-1], out=factor)
        np.negative(factor, out=factor)
        lanes[:] = 0
        each = np.arange(half)
        lanes[meeting, each] = lanes[n - 1 - meeting, half + each] = 1
        for last, ratio, entry in zip(lanes[:0:-1], factor[::-1], lanes[-2::-1], strict=True):
            np.multiply(ratio, last, ratio)
            np.add(entry, ratio, entry)
        vector = np.add(lanes[:, :half], lanes[::-1, half:], out=sums)
        vector[meeting, each] = 1
        vector /= np.sqrt(np.square(vector).sum(axis=0))
    return np.ascontiguousarray(vector.T).reshape(b, r, n)
