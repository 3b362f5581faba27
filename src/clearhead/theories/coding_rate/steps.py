r"""One step of CRATE's attention, in every form in which it is said (Yu et al. 2023, arXiv 2306.01129, section 2.3).

Tokens Z in R^{n x d} are rows, subspaces U_k in R^{d x p}, V_k = Z U_k, a = p / (n eps^2). The gradient of R^c(Z | U)
is the sum of a V_k (I + a V_k^T V_k)^-1 U_k^T. The source expands the inverse to first order, puts a softmax in place
of V_k V_k^T, and takes the sum of U_k U_k^T for the identity; the code released with it then leaves the shrinking out.
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
"""The eps of the hook that was released with the source, which says .01 for its square."""


def subspace_attention(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, sharpness: float = 1.0
) -> Float[Tensor, "*b n d"]:
    """The sum over subspaces of softmax(sharpness V_k V_k^T) V_k U_k^T, each row of the softmax summing to one."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = (sharpness * v @ v.mT).softmax(dim=-1) @ v @ bases.mT
    return attended.sum(dim=-3)


def linear_attention(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b n d"]:
    """The same without a softmax: the sum of V_k V_k^T V_k U_k^T."""
    v = z.unsqueeze(-3) @ bases
    attended: Tensor = v @ (v.mT @ v) @ bases.mT
    return attended.sum(dim=-3)


def exact_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Z less kappa times the gradient of R^c, with kappa = rate / a."""
    return z - rate / _a(z, bases, eps) * subspace_rate_gradient(z, bases, eps=eps)


def neumann_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """Z less kappa (a Z P - a^2 linear attention), P the sum of U_k U_k^T: the gradient to first order in a V_k^T V_k.

    The expansion converges where `expansion_ratio` is below one; beyond it this is no approximation of the gradient.
    """
    within: Tensor = (z.unsqueeze(-3) @ bases @ bases.mT).sum(dim=-3)
    return z - rate * within + rate * _a(z, bases, eps) * linear_attention(z, bases)


def paper_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, eps: float
) -> Float[Tensor, "*b n d"]:
    """(1 - kappa a) Z + kappa a MSSA(Z), MSSA = a times subspace attention, with kappa = rate / a: the source's own."""
    return (1 - rate) * z + rate * _a(z, bases, eps) * subspace_attention(z, bases)


def released_step(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, rate: float, sharpness: float
) -> Float[Tensor, "*b n d"]:
    """Z plus rate times subspace attention: the residual of the released code, with its output map tied to U."""
    return z + rate * subspace_attention(z, bases, sharpness=sharpness)


def expansion_ratio(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, eps: float) -> Float[Tensor, "*b"]:
    """a times the largest squared singular value of any V_k: below one the source's expansion converges."""
    largest: Tensor = torch.linalg.matrix_norm(z.unsqueeze(-3) @ bases, 2).amax(dim=-1)
    return _a(z, bases, eps) * largest.square()


def hook_rate(z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "*b"]:
    """What the released code measures under the name of R^c.

    Tokens go through a layer norm without parameters, are projected, each projection is brought to length one in each
    head, and eps^2 is .01. The size of tokens, and how it is shared among heads, leave no trace in it.
    """
    normed = layer_norm(z, z.shape[-1:], eps=torch.finfo(z.dtype).tiny)
    return coding_rate(normalize(normed.unsqueeze(-3) @ bases, dim=-1), eps=HOOK_EPS).sum(dim=-1)


def _a(z: Tensor, bases: Tensor, eps: float) -> float:
    return bases.shape[-1] / (z.shape[-2] * eps**2)
