r"""One step of CRATE's attention in its published forms (Yu et al. 2023, arXiv 2306.01129, section 2.3).

Tokens Z in R^{n x d} are rows, subspaces U_k in R^{d x p}, V_k = Z U_k, a = p / (n eps^2). The gradient of R^c(Z | U)
is the sum of a V_k (I + a V_k^T V_k)^-1 U_k^T. The paper expands the inverse to first order, replaces V_k V_k^T by a
softmax, and takes the sum of U_k U_k^T to be the identity. The code released with it also leaves out the factor that
shrinks Z. kappa is the step size.
"""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

from clearhead.numerics.coding_rate import coding_rate, subspace_rate_gradient
from clearhead.shapes import Float

__all__ = [
    "HOOK_EPS",
    "exact_step",
    "expansion_ratio",
    "hook_rate",
    "linear_attention",
    "neumann_step",
    "paper_step",
    "released_step",
    "subspace_attention",
]

HOOK_EPS = 0.1
"""eps of the measuring hook in the released code, where eps^2 = 0.01."""


def subspace_attention(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, sharpness: float = 1.0
) -> Float[Tensor, "*b n d"]:
    """Return sum_k softmax(sharpness V_k V_k^T) V_k U_k^T, the softmax over each row."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = (sharpness * v @ v.mT).softmax(dim=-1) @ v @ bases.mT
    return attended.sum(dim=-3)


def linear_attention(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b n d"]:
    """Return subspace attention without the softmax, sum_k V_k V_k^T V_k U_k^T."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = v @ (v.mT @ v) @ bases.mT
    return attended.sum(dim=-3)


def exact_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return Z - kappa grad R^c(Z | U) with kappa = rate / a."""
    return z - rate / _a(z, bases, eps) * subspace_rate_gradient(z, bases, eps=eps)


def neumann_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return Z - kappa (a Z P - a^2 linear attention), P = sum_k U_k U_k^T, kappa = rate / a.

    This is the step along the gradient to first order in a V_k^T V_k. It approximates the gradient only where the
    expansion converges, that is where `expansion_ratio` is below one.
    """
    projected: Tensor = (z.unsqueeze(-3) @ bases @ bases.mT).sum(dim=-3)
    return z - rate * projected + rate * _a(z, bases, eps) * linear_attention(z, bases)


def paper_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Return the paper's step (1 - kappa a) Z + kappa a MSSA(Z), MSSA = a subspace attention, kappa = rate / a."""
    return (1 - rate) * z + rate * _a(z, bases, eps) * subspace_attention(z, bases)


def released_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, sharpness: float
) -> Float[Tensor, "*b n d"]:
    """Return Z + rate SSA(Z), SSA subspace attention: the released code's step, with its output map tied to U."""
    return z + rate * subspace_attention(z, bases, sharpness=sharpness)


def expansion_ratio(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, eps: float) -> Float[Tensor, "*b"]:
    """Return a s_max^2, s_max the largest singular value of any V_k; below one the paper's expansion converges."""
    largest: Tensor = torch.linalg.matrix_norm(z.unsqueeze(-3) @ bases, 2).amax(dim=-1)
    return _a(z, bases, eps) * largest.square()


def hook_rate(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b"]:
    """Return what the released code measures and calls R^c.

    Tokens go through a layer norm without parameters and are projected, each projection is scaled to length one, and
    eps^2 = 0.01. The result depends neither on the size of the tokens nor on how it is divided among the heads.
    """
    normed = layer_norm(z, z.shape[-1:], eps=torch.finfo(z.dtype).tiny)
    return coding_rate(normalize(normed.unsqueeze(-3) @ bases, dim=-1), eps=HOOK_EPS).sum(dim=-1)


def _a(z: Tensor, bases: Tensor, eps: float) -> float:
    """Return a = p / (n eps^2)."""
    return bases.shape[-1] / (z.shape[-2] * eps**2)
