"""Statistics of publications on the theory as they define them, and conditions on each axis of a head.

Teo and Nguyen (2024) report gamma_d = (K a_d) / (N a_d), entry by entry, which is constant for an eigenvector, and the
eigenvalues. Saritas and Yildiz (2025) compare values with the theorem's by cosines of tokens and by CKA; their values
have eigenvectors of length one, A / g. Two differences: the 1e-6 that they add to g g^T, which is at least 1, is left
out, and nothing overflows here, as exp(s k.k) does in float32.

Conditions on each axis and cosines with its columns are further consequences of values that are the theorem's. Their
functions take values (..., m, e) for the keys of a space and return one number per leading index, NaN if it is
undefined. Zero columns are left out. Statistics of single columns change when the values are mixed linearly.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space, product


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gammas:
    """Mean and standard deviation of |gamma_i - gamma_j| over pairs of tokens, absolute and relative to |mean gamma|.

    One number for every column of the values.
    """

    difference: Float[Tensor, "*t e"]
    deviation: Float[Tensor, "*t e"]
    relative: Float[Tensor, "*t e"]
    relative_deviation: Float[Tensor, "*t e"]


def recovered_vectors(space: KeySpace, v: Float[Tensor, "*t m e"], *, printed: bool = False) -> Float[Tensor, "*t m e"]:
    """Return unit columns of A from V = G (I - 1_N) A, by least squares: the centred G^-1 V.

    printed: by (I - 1_N)^-1 G^-1 V as in the publication. I - 1_N is singular; in single precision torch returns an
        inverse with entries of 1e5 and more, so that every column is constant up to about 1e-5. Raise InputError if
        rounding leaves the matrix exactly singular, as for two tokens.
    """
    w = axis_coefficients(space, v)
    if not printed:
        return unit_columns(w - w.mean(dim=-2, keepdim=True))
    m = w.shape[-2]
    inverse, failed = torch.linalg.inv_ex(torch.eye(m, device=w.device) - 1 / m)
    if bool(failed):
        raise InputError(f"torch cannot invert the centring matrix of {m} tokens; it is exactly singular")
    return unit_columns(inverse.double() @ w)


def constant_share(a: Float[Tensor, "*t m e"]) -> Float[Tensor, "*t e"]:
    """Return the squared cosine of every unit column with the constant vector."""
    return a.sum(dim=-2).square() / a.shape[-2]


def gammas(space: KeySpace, v: Float[Tensor, "*t m e"], *, printed: bool = False) -> Gammas:
    """Return the spread over tokens of gamma = K a / (N a), a as in `recovered_vectors`; zero for an eigenvector."""
    a = recovered_vectors(space, v, printed=printed)
    m = a.shape[-2]
    gamma = (space.rows @ space.rows.mT) @ a / (m * a)
    unit = (2 * space.log_unit).exp().unsqueeze(-1)
    rank = torch.arange(m, dtype=gamma.dtype, device=gamma.device).unsqueeze(-1)
    # For sorted numbers, the sum of |difference| over pairs is linear, with weights given by the ranks.
    mean = 2 * ((2 * rank - m + 1) * gamma.sort(dim=-2).values).sum(dim=-2) / (m * (m - 1))
    deviation = (2 * gamma.var(dim=-2) - mean.square()).clamp_min(0).sqrt()
    centre = gamma.mean(dim=-2).abs()
    return Gammas(
        difference=unit * mean,
        deviation=unit * deviation,
        relative=mean / centre,
        relative_deviation=deviation / centre,
    )


def published_values(space: KeySpace, principal: Principal) -> Float[Tensor, "*b m e"]:
    """Return the theorem's values for eigenvectors of length one, A / g, up to a factor."""
    smallest = space.log_g.amin(dim=-1, keepdim=True)
    return principal.vectors * (smallest - space.log_g).exp().unsqueeze(-1)


def token_cosine(theorem: Float[Tensor, "*#t m e"], v: Float[Tensor, "*t m f"]) -> Float[Tensor, "*t"]:
    """Return the mean cosine between rows of V and of the theorem's values, in the best assignment of tokens."""
    width = min(theorem.shape[-1], v.shape[-1])
    rows = [unit_columns(x[..., :width].double().mT) for x in (v, theorem)]
    return best_assignment(rows[0].mT @ rows[1]) / v.shape[-2]


def top_eigenvalues(energy: Float[Tensor, "*b e"], log_unit: Float[Tensor, "*b"]) -> dict[str, Float[Tensor, "*b"]]:
    """Return the largest, mean, median and smallest of the first eigenvalues N lambda_d of the centred Gram matrix.

    energy: N lambda_d / exp(2 log_unit), as in `Principal`
    """
    energy = energy * (2 * log_unit).exp().unsqueeze(-1)
    return {
        "max": energy[..., 0],
        "mean": energy.mean(dim=-1),
        "median": energy.quantile(0.5, dim=-1),
        "min": energy[..., -1],
    }


def standardised(
    k: Float[Tensor, "*b m d"], *, scale: float, sinks: Float[Tensor, "*b"] | None, count: int
) -> dict[str, Float[Tensor, "*b"]]:
    """Return `top_eigenvalues` of keys with mean 0 and variance 1 in every token; NaN if a token is constant."""
    k = k.double()
    k = (k - k.mean(dim=-1, keepdim=True)) / k.std(dim=-1, keepdim=True)
    defined = torch.isfinite(k).all(dim=-1).all(dim=-1)
    space = key_space(torch.where(defined[..., None, None], k, 0), scale=scale, sinks=sinks)
    energy = torch.linalg.eigvalsh(space.rows @ space.rows.mT).flip(-1)[..., :count].clamp_min(0)
    eigenvalues = top_eigenvalues(energy, space.log_unit)
    return {name: torch.where(defined, value, torch.nan) for name, value in eigenvalues.items()}
