r"""Leading eigenpairs of symmetric positive semi-definite matrices, batched, with a derivative that stays finite."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Bool, Float, check_finite

MIN_GAP = 1e4
"""In units of eps e_1: eigenvectors of eigenvalues closer than this have fewer than about three correct digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eigenpairs:
    """The r largest eigenvalues e_1 >= e_2 >= ... >= 0 of K, with orthonormal eigenvectors as columns."""

    values: Float[Tensor, "*b r"]
    vectors: Float[Tensor, "*b n r"]
    following: Float[Tensor, "*b"]
    """The largest eigenvalue not included, or an estimate of it; zero if all are included."""
    residual: Float[Tensor, "*b r"]
    """||K u - e u|| of each pair: the error of the pair, whatever the solver."""
    converged: Bool[Tensor, "*b"]
    """True if the solver reached its tolerance; a direct solver does."""

    def first(self, count: int) -> "Eigenpairs":
        """Return the first `count` pairs."""
        if count >= self.values.shape[-1]:
            return self
        return Eigenpairs(
            values=self.values[..., :count],
            vectors=self.vectors[..., :count],
            following=self.values[..., count].detach(),
            residual=self.residual[..., :count],
            converged=self.converged,
        )


def dense_eigenpairs(matrix: Float[Tensor, "*b n n"], count: int, *, differentiable: bool = False) -> Eigenpairs:
    r"""Return leading eigenpairs by a full decomposition of each matrix, in parallel over torch's threads.

    With `differentiable`, values and vectors have first derivatives in the matrix,

    .. math:: de_d = u_d^\top dK\, u_d, \qquad du_d = \sum_{l \ne d} \frac{u_l^\top dK\, u_d}{e_d - e_l}\, u_l

    without the terms of pairs closer than sqrt(eps) e_1, whose vectors have no derivative: there the result is finite
    and not exact. Second derivatives are not provided.
    """
    n = matrix.shape[-1]
    fixed = matrix.detach()
    check_finite("matrices", fixed)
    all_values, all_vectors = _decomposed(fixed)
    all_values, all_vectors = all_values.flip(-1), all_vectors.flip(-1)
    count = min(count, n)
    values, vectors = all_values[..., :count], all_vectors[..., :count]
    product = fixed @ vectors
    residual = (product - vectors * values.unsqueeze(-2)).norm(dim=-2)
    following = all_values[..., count] if count < n else torch.zeros_like(all_values.sum(dim=-1))
    if differentiable:
        within = all_vectors.mT @ (matrix - fixed) @ vectors
        gap = values.unsqueeze(-2) - all_values.unsqueeze(-1)
        least = machine_epsilon(matrix.dtype) ** 0.5 * all_values[..., :1].unsqueeze(-1)
        near = gap.abs() <= least
        values = values + within.diagonal(dim1=-2, dim2=-1)
        vectors = vectors + all_vectors @ torch.where(near, 0, within / torch.where(near, 1, gap))
    return Eigenpairs(
        values=values.clamp_min(0),
        vectors=vectors,
        following=following.clamp_min(0),
        residual=residual,
        converged=torch.ones_like(following, dtype=torch.bool),
    )


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Call `torch.linalg.eigh`, on the CPU one thread per matrix: it gains little from a second thread."""
    flat = matrix.flatten(0, -3) if matrix.ndim > 2 else matrix[None]
    if len(flat) < 2 or matrix.device.type != "cpu" or torch.compiler.is_compiling():
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    parts = one_thread_each(torch.linalg.eigh, torch.tensor_split(flat, min(len(flat), torch.get_num_threads())))
    values, vectors = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    return values.reshape(matrix.shape[:-1]), vectors.reshape(matrix.shape)


def identified(pairs: Eigenpairs) -> Bool[Tensor, "*b r"]:
    """Return True for each eigenvector whose eigenvalue is separated from both neighbours.

    The gap must exceed `MIN_GAP` eps e_1, since an eigenvector's error is about eps e_1 / gap, and the residual, which
    bounds the eigenvalue's error. Of other eigenvectors only the span with their neighbours is known.
    """
    values = pairs.values.detach()
    gap = values - torch.cat([values[..., 1:], pairs.following.unsqueeze(-1)], dim=-1)
    before = torch.cat([torch.full_like(gap[..., :1], torch.inf), gap[..., :-1]], dim=-1)
    least = MIN_GAP * machine_epsilon(values.dtype) * values[..., :1]
    return torch.minimum(gap, before) > torch.maximum(least, pairs.residual)


def same_sign(vectors: Float[Tensor, "*b n r"]) -> Float[Tensor, "*b #n r"]:
    """Return the sign, 1 or -1, that makes the largest entry of each column positive.

    Among entries within 1e-6 of the largest the first counts, so that rounding does not choose among equal ones.
    """
    if vectors.shape[-2] == 0:
        return torch.ones_like(vectors.detach().sum(dim=-2, keepdim=True))
    size = vectors.detach().abs()
    largest = size >= (1 - 1e-6) * size.amax(dim=-2, keepdim=True)
    first = largest.to(torch.uint8).argmax(dim=-2, keepdim=True)
    return torch.where(vectors.detach().gather(-2, first) < 0, -1.0, 1.0).to(vectors.dtype)
