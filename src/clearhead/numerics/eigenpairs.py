r"""Leading eigenpairs of symmetric positive semi-definite matrices, batched, with a derivative that stays finite.

Those of an operator given as a product with a block of vectors come from a block Krylov method with full
re-orthogonalisation, Rayleigh-Ritz on the whole basis, and thick restarts (Wu and Simon 2000): the basis grows by one
block per product, and when it is full it is reduced to the best Ritz vectors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Bool, Float, ShapeError, check_finite

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


BLOCKS = 6
"""Smallest capacity of the basis, in blocks."""


def guarded(count: int) -> int:
    """Return the number of Ritz values to compute: more than `count`, to estimate the rest of the spectrum."""
    return count + max(16, count // 2)


def krylov_eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Float[Tensor, "n b"],
    count: int,
    *,
    tolerance: float = 1e-6,
    most_products: int = 32,
) -> Eigenpairs:
    r"""Return the `count` largest eigenvalues with their vectors, from the Krylov space of a block of b vectors.

    product: function from X (n, any) to K X, for a symmetric positive semi-definite K
    start: the first block. A wide one, of `guarded(count)` estimates of the leading eigenvectors, needs the fewest
        products; a narrow random one needs the least arithmetic if products are cheap
    tolerance: relative error of an eigenvalue at which to stop, estimated by

    .. math:: \frac{\lVert K u_d - e_d u_d \rVert^2}{e_d\,(e_d - e_\text{out})}

    with e_out the last of `guarded(count)` Ritz values, an estimate of the rest of the spectrum. In a flat spectrum the
    difference vanishes, the estimate stays large and `converged` is False. Residuals are those of the returned pairs,
    in the arithmetic of the product. Memory is twice the basis of `BLOCKS` blocks or 3 `guarded(count)` vectors.
    """
    n, b = start.shape
    if 0 in start.shape:
        raise ShapeError(f"expected a block (n, b) with entries to start with; got {tuple(start.shape)}")
    buffered = min(guarded(count), n)
    capacity = min(n, max(BLOCKS * b, 3 * buffered))
    basis, image = start.new_empty(n, capacity), start.new_empty(n, capacity)
    reduced, overlap = (torch.empty(capacity, capacity, dtype=torch.float64, device=start.device) for _ in range(2))
    block, used, next_check = torch.linalg.qr(start).Q, 0, buffered
    for step in range(1, most_products + 1):
        first, used = used, used + block.shape[1]
        basis[:, first:used], image[:, first:used] = block, product(block)
        for matrix, right in ((reduced, image), (overlap, basis)):
            matrix[:used, first:used] = _inner(basis[:, :used], right[:, first:used])
            matrix[first:used, :used] = matrix[:used, first:used].mT
        block = _new_directions(image[:, first:used], basis[:, :used])[:, : n - used]
        exhausted = block.shape[1] == 0  # the space is invariant: its Ritz pairs are exact
        full = used + min(b, n - used) > capacity
        if used >= next_check or full or exhausted or step == most_products:
            next_check = used + max(b, used // 4)  # a check costs more than a narrow block
            ritz, mix = _rayleigh_ritz(reduced[:used, :used], overlap[:used, :used])
            values, chosen = ritz[:count], mix[:, :count].to(basis)
            vectors = basis[:, :used] @ chosen
            residual = (image[:, :used] @ chosen - vectors * values.to(basis)).norm(dim=0).double()
            distance = values - ritz[min(buffered, used) - 1]
            converged = exhausted or bool((residual.square() <= tolerance * values * distance).all())
            if converged or step == most_products:
                break
        if full:
            best = mix[:, :buffered]
            basis[:, :buffered], image[:, :buffered] = (
                basis[:, :used] @ best.to(basis),
                image[:, :used] @ best.to(basis),
            )
            for matrix in (reduced, overlap):
                matrix[:buffered, :buffered] = best.mT @ matrix[:used, :used] @ best
            used = next_check = buffered
    return Eigenpairs(
        values=values.clamp_min(0),
        vectors=vectors.double(),
        following=ritz[min(count, used - 1)].clamp_min(0),
        residual=residual,
        converged=torch.tensor(converged, device=start.device),
    )


def _new_directions(image: Tensor, basis: Tensor) -> Tensor:
    """Return orthonormal columns that span the part of the image outside the basis, without what is rounding error."""
    least = 4 * machine_epsilon(image.dtype) * math.sqrt(len(image)) * float(image.norm(dim=0).amax())
    block, triangular = torch.linalg.qr(image - basis @ (basis.mT @ image))
    block = block[:, triangular.diagonal().abs() > least]
    # Orthogonalise twice; drop a column that loses most of its length the second time.
    block, triangular = torch.linalg.qr(block - basis @ (basis.mT @ block))
    new: Tensor = block[:, triangular.diagonal().abs() > 0.5]
    return new


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """Return all inner products of columns in double precision: small eigenvalues are differences of large sums."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
    for rows, others in zip(torch.split(left, 4096), torch.split(right, 4096), strict=True):
        total.addmm_(rows.double().mT, others.double())
    return total


def _rayleigh_ritz(reduced: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Return Ritz values, largest first, and the coefficients of their unit vectors in the basis."""
    inverse = torch.linalg.inv(torch.linalg.cholesky(overlap))
    values, mix = torch.linalg.eigh(inverse @ ((reduced + reduced.mT) / 2) @ inverse.mT)
    return values.flip(0), inverse.mT @ mix.flip(1)
