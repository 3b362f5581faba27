"""Further consequences of values that are the theorem's: conditions on each axis, and cosines with its columns.

Every function takes values (..., m, e) for the keys of a space and returns one number per leading index, NaN if it is
undefined. Zero columns are left out. Statistics of single columns change when the values are mixed linearly.
"""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, Principal, product

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
    """Return G^-1 V, the coefficients of the axes on the tokens, up to one factor per head."""
    largest = space.log_g.amax(dim=-1, keepdim=True)
    return v.double() * (space.log_g - largest).exp().unsqueeze(-1)


def mean_of_weighted_values(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """Return mean_d |sum_j g_j v_dj| / sum_j |g_j v_dj|: 0 if weighted values sum to zero, 1 if they share a sign."""
    w = axis_coefficients(space, v)
    return (w.sum(dim=-2).abs() / w.abs().sum(dim=-2)).nanmean(dim=-1)


def axes_not_orthogonal(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """Return the mean squared cosine between two axes u_d, u_d' of the values; NaN for fewer than two nonzero axes."""
    log_size = space.log_size - space.log_size.amax(dim=-1, keepdim=True)
    u = unit_columns(product(space.axes, v.double()) * log_size.exp().unsqueeze(-1))
    count = (u != 0).any(dim=-2).sum(dim=-1)
    off_diagonal = (u.mT @ u).square().sum(dim=(-2, -1)) - count
    return torch.where(count > 1, off_diagonal.clamp_min(0) / (count * (count - 1)), torch.nan)


def eigenvector_residual(space: KeySpace, principal: Principal, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """Return mean_d |K b - rho b| relative to the range of the first e eigenvalues.

    b is the centred G^-1 v_d at length one, rho = b^T K b.
    """
    w = axis_coefficients(space, v)
    b = unit_columns(w - w.mean(dim=-2, keepdim=True))
    image = product(space.rows @ space.rows.mT, b)
    rho = (b * image).sum(dim=-2, keepdim=True)
    eigenvalue_range = principal.energy[..., 0] - principal.energy[..., -1]
    nonzero = (b != 0).any(dim=-2)
    residual = torch.where(nonzero, (image - rho * b).norm(dim=-2), torch.nan).nanmean(dim=-1)
    return torch.where(eigenvalue_range > 0, residual / eigenvalue_range, torch.nan)


def participation(v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """Return the mean participation ratio mean_d (sum_j v_dj^2)^2 / sum_j v_dj^4, from 1 to m tokens."""
    v = v.double()
    square = (v / v.abs().amax(dim=-2, keepdim=True)).square()
    return (square.sum(dim=-2).square() / square.square().sum(dim=-2)).nanmean(dim=-1)


def matched_cosine(principal: Principal, v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*s"]:
    """Return the mean |cosine| of the theorem's known columns with columns of V, in the best assignment."""
    cosine = (unit_columns(principal.values).mT @ unit_columns(v.double())).abs()
    axes = principal.known.sum(dim=-1)
    return torch.where(axes > 0, best_assignment(cosine) / axes, torch.nan)


def best_assignment(gain: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t"]:
    """Return the largest sum of gains over one-to-one pairings of rows and columns; NaN if a gain is not finite."""
    flat = gain.reshape(-1, *gain.shape[-2:]).cpu().numpy()
    totals = [
        matrix[linear_sum_assignment(matrix, maximize=True)].sum() if np.isfinite(matrix).all() else np.nan
        for matrix in flat
    ]
    return gain.new_tensor(np.array(totals)).reshape(gain.shape[:-2])


def unit_columns(v: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t m e"]:
    """Scale columns to length one; zero columns stay zero."""
    largest = v.abs().amax(dim=-2, keepdim=True)
    v = v / torch.where(largest > 0, largest, 1)
    length = v.norm(dim=-2, keepdim=True)
    return v / torch.where(length > 0, length, 1)
