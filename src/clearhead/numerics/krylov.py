r"""Leading eigenpairs of a positive semi-definite operator that is known only by its product with a block of vectors.

Block Krylov with full re-orthogonalisation, Rayleigh-Ritz on everything kept, and thick restarts (Wu and Simon 2000):
the basis grows by one block for each product, and when it is full the best Ritz vectors stay.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.numerics.eigenpairs import Eigenpairs
from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Float, ShapeError

__all__ = ["guarded", "krylov_eigenpairs"]

BLOCKS = 6
"""How many blocks the basis holds at least."""


def guarded(count: int) -> int:
    """How many Ritz values are looked at: more than are asked for, to tell where the rest of the spectrum begins."""
    return count + max(16, count // 2)


def krylov_eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Float[Tensor, "n b"],
    count: int,
    *,
    tolerance: float = 1e-6,
    most_products: int = 32,
) -> Eigenpairs:
    r"""The `count` largest eigenvalues with their vectors, from the Krylov space of a block of b vectors.

    product: X (n, any) to K X, for a symmetric positive semi-definite K
    start: a block to begin with. A wide one, of `guarded(count)` guesses at the leading eigenvectors, needs the fewest
        products; a narrow random one the least arithmetic, where products are cheap
    tolerance: relative error of an eigenvalue at which to stop, by the estimate

    .. math:: \frac{\lVert K u_d - e_d u_d \rVert^2}{e_d\,(e_d - e_\text{out})}

    with e_out the last of `guarded(count)` Ritz values, where the rest of the spectrum is taken to begin. In a flat
    spectrum the difference vanishes, the estimate stays large and the result says that it did not converge. Residuals
    are those of the pairs returned, in the arithmetic of the product. Memory is that of twice the basis, which holds
    `BLOCKS` blocks or 3 `guarded(count)` vectors.
    """
    n, b = start.shape
    if 0 in start.shape:
        raise ShapeError(f"expected a block (n, b) with entries to start with; got {tuple(start.shape)}")
    stay = min(guarded(count), n)
    room = min(n, max(BLOCKS * b, 3 * stay))
    basis, image = start.new_empty(n, room), start.new_empty(n, room)
    reduced, overlap = (torch.empty(room, room, dtype=torch.float64, device=start.device) for _ in range(2))
    block, used, look_at = torch.linalg.qr(start).Q, 0, stay
    for step in range(1, most_products + 1):
        first, used = used, used + block.shape[1]
        basis[:, first:used], image[:, first:used] = block, product(block)
        for matrix, right in ((reduced, image), (overlap, basis)):
            matrix[:used, first:used] = _inner(basis[:, :used], right[:, first:used])
            matrix[first:used, :used] = matrix[:used, first:used].mT
        block = _new_directions(image[:, first:used], basis[:, :used])[:, : n - used]
        exhausted = block.shape[1] == 0  # the space holds its own image: what is in it is exact
        full = used + min(b, n - used) > room
        if used >= look_at or full or exhausted or step == most_products:
            look_at = used + max(b, used // 4)  # a look costs more than a narrow block does
            ritz, mix = _rayleigh_ritz(reduced[:used, :used], overlap[:used, :used])
            values, chosen = ritz[:count], mix[:, :count].to(basis)
            vectors = basis[:, :used] @ chosen
            residual = (image[:, :used] @ chosen - vectors * values.to(basis)).norm(dim=0).double()
            distance = values - ritz[min(stay, used) - 1]
            converged = exhausted or bool((residual.square() <= tolerance * values * distance).all())
            if converged or step == most_products:
                break
        if full:
            best = mix[:, :stay]
            basis[:, :stay], image[:, :stay] = basis[:, :used] @ best.to(basis), image[:, :used] @ best.to(basis)
            for matrix in (reduced, overlap):
                matrix[:stay, :stay] = best.mT @ matrix[:used, :used] @ best
            used = look_at = stay
    return Eigenpairs(
        values=values.clamp_min(0),
        vectors=vectors.double(),
        following=ritz[min(count, used - 1)].clamp_min(0),
        residual=residual,
        converged=torch.tensor(converged, device=start.device),
    )


def _new_directions(image: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal columns that span what the image adds to the basis, and none for what is rounding beside it."""
    least = 4 * machine_epsilon(image.dtype) * math.sqrt(len(image)) * float(image.norm(dim=0).amax())
    block, own = torch.linalg.qr(image - basis @ (basis.mT @ image))
    block = block[:, own.diagonal().abs() > least]
    # Once more, for what the first time leaves of the basis; a column of which that was most is no direction.
    block, own = torch.linalg.qr(block - basis @ (basis.mT @ block))
    new: Tensor = block[:, own.diagonal().abs() > 0.5]
    return new


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """All inner products of columns, summed in double precision: small eigenvalues are differences of large sums."""
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
    for rows, others in zip(torch.split(left, 4096), torch.split(right, 4096), strict=True):
        total.addmm_(rows.double().mT, others.double())
    return total


def _rayleigh_ritz(reduced: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz values, largest first, and the mixes of the basis that are their vectors, of unit length."""
    inverse = torch.linalg.inv(torch.linalg.cholesky(overlap))
    values, mix = torch.linalg.eigh(inverse @ ((reduced + reduced.mT) / 2) @ inverse.mT)
    return values.flip(0), inverse.mT @ mix.flip(1)
