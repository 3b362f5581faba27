"""What else follows if a head's values are the theorem's: conditions on each axis, and columns like the theorem's.

Every function takes values of shape (..., m, e) on the keys of a space and gives one number per leading index, NaN
where it is undefined. Columns of zeros are left out. Those that look at single columns change when values are mixed.
"""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, Principal

__all__ = [
    "axes_not_orthogonal",
    "axis_coefficients",
    "best_assignment",
    "eigenvector_residual",
    "matched_cosine",
    "mean_of_weighted_values",
    "participation",
    "unit_columns",
]


def axis_coefficients(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t m e"]:
    """G^-1 V, the coefficients of the axes on the tokens, up to one factor per head."""
    heaviest = space.log_g.amax(dim=-1, keepdim=True)
    return v.double() * (space.log_g - heaviest).exp().unsqueeze(-1)


def mean_of_weighted_values(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """mean_d |sum_j g_j v_dj| / sum_j |g_j v_dj|: 0 where weighted values sum to zero, 1 where they have one sign."""
    w = axis_coefficients(space, v)
    return (w.sum(dim=-2).abs() / w.abs().sum(dim=-2)).nanmean(dim=-1)


def axes_not_orthogonal(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """The mean square cosine between two axes u_d, u_d' of the values; NaN if fewer than two are not zero."""
    log_size = space.log_size - space.log_size.amax(dim=-1, keepdim=True)
    u = unit_columns((space.axes @ v.double()) * log_size.exp().unsqueeze(-1))
    count = (u != 0).any(dim=-2).sum(dim=-1)
    off = (u.mT @ u).square().sum(dim=(-2, -1)) - count
    return torch.where(count > 1, off.clamp_min(0) / (count * (count - 1)), torch.nan)


def eigenvector_residual(space: KeySpace, principal: Principal, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """mean_d |K b - rho b| over the spread of the first e eigenvalues, b the unit centred G^-1 v_d, rho = b^T K b."""
    w = axis_coefficients(space, v)
    b = unit_columns(w - w.mean(dim=-2, keepdim=True))
    product = (space.rows @ space.rows.mT) @ b
    rho = (b * product).sum(dim=-2, keepdim=True)
    spread = principal.energy[..., 0] - principal.energy[..., -1]
    there = (b != 0).any(dim=-2)
    residual = torch.where(there, (product - rho * b).norm(dim=-2), torch.nan).nanmean(dim=-1)
    return torch.where(spread > 0, residual / spread, torch.nan)


def participation(v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """mean_d (sum_j v_dj^2)^2 / sum_j v_dj^4: on how many tokens a column sits, from 1 to m; zero columns left out."""
    v = v.double()
    square = (v / v.abs().amax(dim=-2, keepdim=True)).square()
    return (square.sum(dim=-2).square() / square.square().sum(dim=-2)).nanmean(dim=-1)


def matched_cosine(principal: Principal, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """The mean |cosine| between known columns of the theorem's values and columns of V, in the best assignment."""
    cosine = (unit_columns(principal.values).mT @ unit_columns(v.double())).abs()
    axes = principal.known.sum(dim=-1)
    return torch.where(axes > 0, best_assignment(cosine) / axes, torch.nan)


def best_assignment(gain: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t"]:
    """The largest sum of gains when rows and columns are paired one to one (Jonker and Volgenant 1987)."""
    flat = gain.reshape(-1, *gain.shape[-2:]).cpu().numpy()
    totals = [
        one[linear_sum_assignment(one, maximize=True)].sum() if np.isfinite(one).all() else np.nan for one in flat
    ]
    return gain.new_tensor(np.array(totals)).reshape(gain.shape[:-2])


def unit_columns(v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t m e"]:
    """Columns of length one; columns of zeros stay."""
    largest = v.abs().amax(dim=-2, keepdim=True)
    v = v / torch.where(largest > 0, largest, 1)
    length = v.norm(dim=-2, keepdim=True)
    return v / torch.where(length > 0, length, 1)
