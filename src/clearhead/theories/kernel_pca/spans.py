r"""Statistics of the span of a head's axes, which do not change when the values are mixed linearly.

The captured variance is

    EV(V) = tr[(W^T K W)^+ W^T K H K W] / (sum of the e largest eigenvalues of H K H),    W = G^-1 V,

the variance of the centred keys within the span of the axes u_d = sum_j g(k_j) v_dj phi(k_j), relative to the largest
variance that e axes can capture. It is 1 if and only if the span is the principal subspace.
"""

import torch
from torch import Tensor

from clearhead.numerics.spectrum import captured_fraction, orthonormal_basis
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space, product


def captured_variance(
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*#b m e"],
    *,
    scale: float,
    sinks: Float[Tensor, "*b"] | None = None,
) -> Float[Tensor, "*b"]:
    """Return EV(V) for keys that are all visible, computed in float64.

    NaN if the keys have no variance: a single key, or all equal.
    """
    space = key_space(k, scale=scale, sinks=sinks)
    return captured_fraction(space.rows, span_of(space, v))


def span_of(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t r e"]:
    """Return orthonormal columns that span the axes of values V."""
    return orthonormal_basis(product(space.axes, v.double()).contiguous(), space.log_size)


def span_variance(space: KeySpace, principal: Principal, span: Float[Tensor, "*t r e"]) -> Float[Tensor, "*s"]:
    """Return EV(V) from the span of the axes and the principal axes."""
    largest = principal.energy.sum(dim=-1)
    captured = product(space.rows, span).square().sum(dim=(-2, -1))
    return torch.where(largest > 0, captured / largest, torch.nan)


def subspace_overlap(principal: Principal, span: Float[Tensor, "*t r e"]) -> Float[Tensor, "*s"]:
    """Return the mean squared cosine between the principal subspace and the span; NaN if no axis is known."""
    shared = product(principal.directions.mT, span).square().sum(dim=(-2, -1))
    axes = principal.known.sum(dim=-1)
    return torch.where(axes > 0, shared / axes, torch.nan)
