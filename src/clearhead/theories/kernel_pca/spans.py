r"""What the span of a head's axes holds: statistics that no mix of the values changes.

Measured is, first,

    EV(V) = tr[(W^T K W)^+ W^T K H K W] / (sum of the e largest eigenvalues of H K H),    W = G^-1 V,

the share of the keys' centred variance that lies in the span of the axes u_d = sum_j g(k_j) v_dj phi(k_j), over the
most that e axes can hold. It is 1 iff the span is the principal subspace.
"""

import torch
from torch import Tensor

from clearhead.numerics.spectrum import captured_fraction, orthonormal_basis
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space

__all__ = ["captured_variance", "held_variance", "span_of", "subspace_overlap"]


def captured_variance(
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*#b m e"],
    *,
    scale: float,
    sinks: Float[Tensor, "*b"] | None = None,
) -> Float[Tensor, "*b"]:
    """EV(V) of the module's docstring, for keys that all can be seen; computed in float64 whatever comes in.

    NaN where the keys have no variance: a single one, or all equal.
    """
    space = key_space(k, scale=scale, sinks=sinks)
    return captured_fraction(space.rows, span_of(space, v))


def span_of(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t r e"]:
    """Orthonormal columns that span the axes of values V."""
    return orthonormal_basis((space.axes @ v.double()).contiguous(), space.log_size)


def held_variance(space: KeySpace, principal: Principal, span: Float[Tensor, "*t r e"]) -> Float[Tensor, "*s"]:
    """EV(V) from the span of the axes, where the principal axes are known already."""
    most = principal.energy.sum(dim=-1)
    held = (space.rows @ span).square().sum(dim=(-2, -1))
    return torch.where(most > 0, held / most, torch.nan)


def subspace_overlap(principal: Principal, span: Float[Tensor, "*t r e"]) -> Float[Tensor, "*s"]:
    """Mean square cosine of the angles between the principal subspace and the span; NaN where no axis is known."""
    shared = (principal.directions.mT @ span).square().sum(dim=(-2, -1))
    axes = principal.known.sum(dim=-1)
    return torch.where(axes > 0, shared / axes, torch.nan)
