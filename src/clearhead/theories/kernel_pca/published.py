"""Statistics that publications on the theory rest on, as they define them.

Teo and Nguyen (2024) look at gamma_d = (K a_d) / (N a_d), entry by entry, which is constant for an eigenvector, and at
the eigenvalues themselves. Saritas and Yildiz (2025) compare values with the theorem's by cosines of tokens and by CKA;
theirs have eigenvectors of length one, V^ = A / g. Their 1e-6 added to g g^T, which is at least 1, is left out, and
nothing here overflows as exp(s k.k) does in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float
from clearhead.theories.kernel_pca.conditions import axis_coefficients, best_assignment, unit_columns
from clearhead.theories.kernel_pca.space import KeySpace, Principal, key_space

__all__ = ["Gammas", "gammas", "published_values", "standardised", "token_cosine", "top_eigenvalues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gammas:
    """For every column of the values, over pairs of tokens: the mean and the deviation of |gamma_i - gamma_j|, and both
    relative to |mean gamma|."""

    difference: Float[Tensor, "*t e"]
    deviation: Float[Tensor, "*t e"]
    relative: Float[Tensor, "*t e"]
    relative_deviation: Float[Tensor, "*t e"]


def gammas(space: KeySpace, v: Float[Tensor, "*t m e"]) -> Gammas:
    """How far K a / (N a), a the centred G^-1 v, is from the same number for every token."""
    w = axis_coefficients(space, v)
    a = unit_columns(w - w.mean(dim=-2, keepdim=True))
    m = a.shape[-2]
    gamma = (space.rows @ space.rows.mT) @ a / (m * a)
    unit = (2 * space.log_unit).exp().unsqueeze(-1)
    rank = torch.arange(m, dtype=gamma.dtype, device=gamma.device).unsqueeze(-1)
    # Over pairs of sorted numbers, |difference| is a plain difference: each number enters with its rank.
    mean = 2 * ((2 * rank - m + 1) * gamma.sort(dim=-2).values).sum(dim=-2) / (m * (m - 1))
    deviation = (2 * gamma.var(dim=-2) - mean.square()).clamp_min(0).sqrt()
    middle = gamma.mean(dim=-2).abs()
    return Gammas(
        difference=unit * mean,
        deviation=unit * deviation,
        relative=mean / middle,
        relative_deviation=deviation / middle,
    )


def published_values(space: KeySpace, principal: Principal) -> Float[Tensor, "*b m e"]:
    """The theorem's values for eigenvectors of length one, up to a factor: A / g."""
    lightest = space.log_g.amin(dim=-1, keepdim=True)
    return principal.vectors * (lightest - space.log_g).exp().unsqueeze(-1)


def token_cosine(theorem: Float[Tensor, "*#t m e"], v: Float[Tensor, "*t m f"]) -> Float[Tensor, "*t"]:
    """The mean cosine between rows of the values and of the theorem's, tokens assigned so that it is largest."""
    width = min(theorem.shape[-1], v.shape[-1])
    rows = [unit_columns(x[..., :width].double().mT) for x in (v, theorem)]
    return best_assignment(rows[0].mT @ rows[1]) / v.shape[-2]


def top_eigenvalues(energy: Float[Tensor, "*b e"], log_unit: Float[Tensor, "*b"]) -> dict[str, Float[Tensor, "*b"]]:
    """The largest, mean, median and smallest of the first eigenvalues N lambda_d of the centred Gram matrix.

    `energy` are these over exp(2 log_unit), as `principal_axes` has them.
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
    """`top_eigenvalues` of keys whose features have mean 0 and deviation 1 in every token; NaN for a constant token."""
    k = k.double()
    k = (k - k.mean(dim=-1, keepdim=True)) / k.std(dim=-1, keepdim=True)
    known = torch.isfinite(k).all(dim=-1).all(dim=-1)
    space = key_space(torch.where(known[..., None, None], k, 0), scale=scale, sinks=sinks)
    energy = torch.linalg.eigvalsh(space.rows @ space.rows.mT).flip(-1)[..., :count].clamp_min(0)
    found = top_eigenvalues(energy, space.log_unit)
    return {name: torch.where(known, value, torch.nan) for name, value in found.items()}
