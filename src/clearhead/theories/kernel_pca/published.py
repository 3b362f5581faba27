"""Statistics of publications on the theory, as they define them.

Teo and Nguyen (2024) report gamma_d = (K a_d) / (N a_d), entry by entry, which is constant for an eigenvector, and the
eigenvalues. Saritas and Yildiz (2025) compare values with the theorem's by cosines of tokens and by CKA; their values
have eigenvectors of length one, A / g. Two differences: the 1e-6 that they add to g g^T, which is at least 1, is left
out, and nothing overflows here, as exp(s k.k) does in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.shapes import Float
from clearhead.theories.kernel_pca.conditions import axis_coefficients, best_assignment, unit_columns
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space

__all__ = [
    "Gammas", "constant_share", "gammas", "published_values", "recovered_vectors", "standardised", "token_cosine",
    "top_eigenvalues",
]  # fmt: skip


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
