r"""Leading eigenpairs of a positive semi-definite operator given as a product with a block of vectors.

A block Krylov method with full re-orthogonalisation, Rayleigh-Ritz on the whole basis, and thick restarts (Wu and Simon
2000): the basis grows by one block per product, and when it is full it is reduced to the best Ritz vectors.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.numerics.eigenpairs import Eigenpairs
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, ShapeError

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
