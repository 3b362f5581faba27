r"""Leading eigenpairs of many symmetric positive semi-definite matrices, without the others.

Each matrix is reduced to tridiagonal form T. Eigenvalues of T come from LAPACK's root-free QR, vectors from twisted
factorisations (Dhillon and Parlett 2004), a recurrence of n steps that is vectorised over all vectors of all matrices.
Close eigenvalues give vectors that are not orthogonal. This is checked, and such a matrix is solved again by LAPACK's
bisection and inverse iteration, which orthogonalises.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics import lapack
from clearhead.numerics.eigenpairs import Eigenpairs, dense_eigenpairs
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Float, check_finite

Array = NDArray[np.float64]

LANES = 512
"""Vectors per recurrence: enough to hide its overhead, few enough for the cache."""
ORTHOGONAL = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Largest inner product of two vectors that count as orthogonal, by precision of the reduction."""


def leading_eigenpairs(
    matrix: Float[Tensor, "b n n"], count: int, *, precision: torch.dtype = torch.float64
) -> Eigenpairs:
    """Return the `count` < n largest eigenvalues with their vectors of each symmetric matrix, on the CPU.

    Results are in double precision. With `precision` torch.float32 the reduction, the largest cost, is done in single
    precision. The error of a vector is then about 1e-7 e_1 / gap, and that of its eigenvalue, a Rayleigh quotient, the
    square of it.
    """
    check_finite("matrices", matrix.detach())
    if not 1 <= count < matrix.shape[-1]:
        raise InputError(f"expected a count of at least 1 and below n = {matrix.shape[-1]}; got {count}")
    if not len(matrix):
        return dense_eigenpairs(matrix.detach().double(), count, differentiable=False)
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
    """Return all eigenvalues of each symmetric matrix, largest first, in double precision on the CPU."""
    check_finite("matrices", matrix.detach())
    stacked: Array = matrix.detach().cpu().double().numpy()
    n = stacked.shape[-1]
    if n < 2 or not len(stacked):
        return matrix.detach().double().diagonal(dim1=-2, dim2=-1)
    values = one_thread_each(_values, list(stacked))
    return torch.from_numpy(np.stack(values)[:, ::-1].copy()).to(matrix.device)


def _values(matrix: Array) -> Array:
    reduced = lapack.reduce(matrix)
    return lapack.eigenvalues_of_tridiagonal(reduced.diagonal, reduced.off_diagonal)


def _groups(matrices: Array, limit: int) -> list[Array]:
    """Split matrices into equal groups of at most `limit`, a multiple of the threads in number."""
    rounds = max(1, math.ceil(len(matrices) / (limit * torch.get_num_threads())))
    return np.array_split(matrices, min(rounds * torch.get_num_threads(), max(len(matrices), 1)))


def _group(matrices: Array, count: int, precision: torch.dtype) -> tuple[Array, Array, Array, Array]:
    """Return eigenvalues, smallest first, vectors, the next smaller eigenvalue, and residuals."""
    n = matrices.shape[-1]
    converted = matrices.astype(np.float32) if precision is torch.float32 else matrices
    reduced = [lapack.reduce(matrix) for matrix in converted]
    diagonal = np.stack([reduction.diagonal for reduction in reduced]).astype(np.float64)
    off_diagonal = np.stack([reduction.off_diagonal for reduction in reduced]).astype(np.float64)
    energy = np.stack([lapack.eigenvalues_of_tridiagonal(d, e) for d, e in zip(diagonal, off_diagonal, strict=True)])
    small = _twisted(diagonal, off_diagonal, energy[:, -count:])
    values, residual = np.empty((len(matrices), count)), np.empty((len(matrices), count))
    vectors = np.empty((len(matrices), n, count))
    for i, reduction in enumerate(reduced):
        vectors[i] = lapack.rotate_back(reduction, small[i]).T
        overlap = vectors[i].T @ vectors[i]
        length = np.sqrt(overlap.diagonal())
        vectors[i] /= length
        overlap -= np.diag(overlap.diagonal())
        if not np.abs(overlap).max() <= ORTHOGONAL[precision]:
            vectors[i] = eigh(matrices[i], subset_by_index=(n - count, n - 1), check_finite=False)[1]
        values[i], residual[i] = _quotients(matrices[i], vectors[i])
    return values, vectors, energy[:, -count - 1], residual


def _quotients(matrix: Array, vectors: Array) -> tuple[Array, Array]:
    """Return Rayleigh quotients of unit vectors and the residuals of these pairs."""
    product = matrix @ vectors
    values: Array = (vectors * product).sum(axis=0)
    product -= vectors * values
    residual: Array = np.sqrt(np.square(product, out=product).sum(axis=0))
    return values, residual


def _twisted(diagonal: Array, off_diagonal: Array, values: Array) -> Array:
    r"""Return unit eigenvectors (b, r, n) of tridiagonal matrices from their eigenvalues.

    T - e I is factored from the top, with pivots p_i, and from the bottom, with pivots m_i. Where p_i + m_i - (d_i - e)
    is smallest the two meet: the vector is 1 there, and each next entry is the last times -off_diagonal / pivot. The
    factorisation from the bottom is that of the reversed T from the top, so both run in one recurrence.
    """
    (b, r), n = values.shape, diagonal.shape[1]
    half = b * r
    shifted, lanes, factor = np.empty((n, 2 * half)), np.empty((n, 2 * half)), np.empty((n - 1, 2 * half))
    shifted[:, :half].reshape(n, b, r)[:] = diagonal.T[:, :, None] - values
    shifted[:, half:] = shifted[::-1, :half]
    factor[:, :half].reshape(n - 1, b, r)[:] = off_diagonal.T[:, :, None]
    factor[:, half:] = factor[::-1, :half]
    square = np.square(factor)
    with np.errstate(all="ignore"):  # a zero pivot gives a vector that fails the check of orthogonality
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
