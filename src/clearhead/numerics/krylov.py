r"""Leading eigenpairs of a positive semi-definite operator that is known only by its product with a block of vectors.

Block Krylov with full re-orthogonalisation, Rayleigh-Ritz on everything kept, and thick restarts (Wu and Simon 2000):
the basis grows by one block for each product, and when it is full the best Ritz vectors stay.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.axes import Float
from clearhead.numerics.eigenpairs import Eigenpairs

__all__ = ["krylov_eigenpairs"]

BLOCKS = 6
"""How many blocks the basis holds."""


def krylov_eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Float[Tensor, "n b"],
    count: int,
    *,
    tolerance: float = 1e-6,
    most_products: int = 32,
) -> Eigenpairs:
    r"""The `count` largest eigenvalues with their vectors, from the Krylov space of a block of b > count vectors.

    product: X (n, any) to K X, for a symmetric positive semi-definite K
    start: a first guess at the leading eigenvectors; random columns are none, and cost a product
    tolerance: relative error of an eigenvalue at which to stop, by the estimate

    .. math:: \frac{\lVert K u_d - e_d u_d \rVert^2}{e_d\,(e_d - e_\text{out})}

    with e_out the b-th Ritz value, where the rest of the spectrum is taken to begin. In a flat spectrum the difference
    vanishes, the estimate stays large and the result says that it did not converge. Residuals are those of the pairs
    returned, in the arithmetic of the product. Memory is that of about 2 `BLOCKS` blocks.
    """
    n, b = start.shape
    room = min(n, BLOCKS * b)
    basis, image = start.new_empty(n, room), start.new_empty(n, room)
    reduced, overlap = (torch.empty(room, room, dtype=torch.float64, device=start.device) for _ in range(2))
    block, used = _orthonormal(start), 0
    for step in range(1, most_products + 1):
        first, used = used, used + block.shape[1]
        basis[:, first:used], image[:, first:used] = block, product(block)
        for matrix, right in ((reduced, image), (overlap, basis)):
            matrix[:used, first:used] = _inner(basis[:, :used], right[:, first:used])
            matrix[first:used, :used] = matrix[:used, first:used].mT
        ritz, mix = _rayleigh_ritz(reduced[:used, :used], overlap[:used, :used])
        values, chosen = ritz[:count], mix[:, :count].to(basis)
        vectors = basis[:, :used] @ chosen
        residual = (image[:, :used] @ chosen - vectors * values.to(basis)).norm(dim=0).double()
        distance = values - ritz[b - 1]
        converged = used == n or bool((residual.square() <= tolerance * values * distance).all())
        if converged or step == most_products:
            break
        block = _orthonormal(image[:, first:used], against=basis[:, :used])[:, : n - used]
        if used + block.shape[1] > room:
            best = mix[:, :b]
            basis[:, :b], image[:, :b] = basis[:, :used] @ best.to(basis), image[:, :used] @ best.to(basis)
            for matrix in (reduced, overlap):
                matrix[:b, :b] = best.mT @ matrix[:used, :used] @ best
            used = b
    return Eigenpairs(
        values=values.clamp_min(0),
        vectors=vectors.double(),
        following=ritz[count].clamp_min(0),
        residual=residual,
        converged=torch.tensor(converged, device=start.device),
    )


def _orthonormal(block: Tensor, against: Tensor | None = None) -> Tensor:
    """Orthonormal columns of the span, orthogonal to other columns; done twice, for what once leaves of those."""
    for _ in range(2):
        if against is not None:
            block = block - against @ (against.mT @ block)
        block = torch.linalg.qr(block).Q
    return block


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
