r"""Multi-head subspace self-attention (Yu et al. 2023, arXiv 2306.01129, section 2.3; 2024, arXiv 2311.13110).

Theirs have tokens as columns Z (d x N) and K subspaces with orthonormal bases U_k (d x p). With V_k = U_k^T Z,

    SSA_k(Z) = V_k softmax(V_k^T V_k),        MSSA(Z) = a [U_1 ... U_K] [SSA_1; ...; SSA_K],        a = p / (N eps^2),

and one layer's step is Z + kappa a (MSSA(Z) - Z), from a descent step of length kappa on the rate of the projected
tokens whose inverse is cut after its first order and whose Gram matrix is replaced by its softmax. Here tokens are
rows. The released code drops the shrinking term, has a separate matrix instead of [U_1 ... U_K], divides scores by
sqrt(p) and absorbs a: `clearhead.modules.SubspaceAttention`.
"""

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import check_eps
from clearhead.operators.symmetric import slow_symmetric_attention, symmetric_attention
from clearhead.shapes import Bool, Float, ShapeError


def subspace_attention(
    v: Float[Tensor, "*b n p"], *, mask: Bool[Tensor, "..."] | None = None, scale: float | None = None
) -> Float[Tensor, "*b n p"]:
    r"""Return attention among projected tokens, each of which is query, key and value.

    .. math:: o_i = \sum_j w_{ij} v_j, \qquad w_{ij} \propto e^{\text{scale}\; v_i \cdot v_j}

    SSA of one subspace: `symmetric_attention(v, v)`. `scale` is 1/sqrt(p) if None, as released; the paper has 1.
    """
    return symmetric_attention(v, v, mask=mask, scale=scale)


def slow_subspace_attention(
    v: Float[Tensor, "*b n p"], *, mask: Bool[Tensor, "..."] | None = None, scale: float | None = None
) -> Float[Tensor, "*b n p"]:
    """Compute `subspace_attention` one token at a time."""
    return slow_symmetric_attention(v, v, mask=mask, scale=scale)


def subspace_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    scale: float = 1.0,
) -> Float[Tensor, "*b n d"]:
    r"""Return one step of the paper: shrink the tokens and add their attention in each subspace.

    .. math::
        z \leftarrow (1 - t) z + t\, a \sum_k U_k\, \mathrm{SSA}_k(z), \qquad
        t = \kappa a, \qquad a = p / (n\,\epsilon^2)

    bases: U_k; the derivation assumes orthonormal columns and projections that sum to the identity
    length: t, the share by which the tokens shrink; a step of size kappa = t / a on the rate
    eps: the distortion of the rate
    """
    check_bases(z, bases)
    check_eps(eps)
    weight = bases.shape[-1] / (z.shape[-2] * eps**2)
    attended = subspace_attention(projected(z, bases), scale=scale)
    return (1 - length) * z + length * weight * torch.einsum("...knp,kdp->...nd", attended, bases)


def slow_subspace_step(
    z: Float[Tensor, "*b n d"],
    bases: Float[Tensor, "k d p"],
    *,
    length: float,
    eps: float = 0.5,
    scale: float = 1.0,
) -> Float[Tensor, "*b n d"]:
    """Compute `subspace_step` with tokens as columns, one subspace after the other, as printed."""
    check_bases(z, bases)
    Z = z.mT
    a = bases.shape[-1] / (Z.shape[-1] * eps**2)
    attended = torch.zeros_like(Z)
    for U in bases:
        V = U.mT @ Z
        attended = attended + U @ (V @ torch.softmax(scale * V.mT @ V, dim=-2))
    return ((1 - length) * Z + length * a * attended).mT


def projected(z: Tensor, bases: Tensor) -> Tensor:
    """Return V_k^T for every subspace, (..., k, n, p)."""
    k, d, p = bases.shape
    flat = z @ bases.movedim(0, 1).reshape(d, k * p)
    return flat.reshape(*z.shape[:-1], k, p).movedim(-2, -3)


def check_bases(z: Tensor, bases: Tensor) -> None:
    """Raise unless bases (k, d, p) fit tokens (..., n, d)."""
    if z.ndim < 2 or bases.ndim != 3 or bases.shape[1] != z.shape[-1] or z.shape[-2] == 0:
        raise ShapeError(
            f"expected tokens z (..., n, d), at least one, and bases (k, d, p); got z {tuple(z.shape)}, "
            f"bases {tuple(bases.shape)}"
        )
    if not z.is_floating_point() or z.dtype != bases.dtype:
        raise InputError(f"expected z and bases of one floating dtype; got {z.dtype} and {bases.dtype}")
