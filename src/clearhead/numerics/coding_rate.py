r"""The coding rate: the number of nats needed to code tokens up to an error of eps.

For tokens Z in R^{n x d}, one per row (Ma et al. 2007; Yu et al. 2020, arXiv 2006.08558, who use columns):

.. math:: R(Z; \epsilon) = \tfrac12 \log\det(I + \alpha Z^T Z), \qquad \alpha = \frac{d}{n \epsilon^2}

`eps` is epsilon. Published code often calls epsilon squared "eps": its .5 is eps = .707 here.

R^c has two forms. Over classes (MCR2) it is the sum of the classes' rates, each weighted by its fraction of the tokens:
`class_rates`. Over subspaces U_k in R^{d x p} (Yu et al. 2023, arXiv 2306.01129) it is the sum of R(Z U_k), with p in
place of d: `subspace_rates`.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.logdet import log_det, log_det_gradient
from clearhead.numerics.precision import machine_epsilon
from clearhead.private_names import functorch_active
from clearhead.shapes import Float, Int, ShapeError, check_finite

__all__ = [
    "ClassRates",
    "RateReduction",
    "RoundingNoiseWarning",
    "check_eps",
    "class_rates",
    "coding_rate",
    "numerical_rank",
    "predicted_excess",
    "rate_gradient",
    "rate_reduction",
    "subspace_rate_gradient",
    "subspace_rates",
]


MOST_CLASSES = 1_000_000
SMALLEST_EPS = 1e-100
"""Outside [this, 1 / this] the square of eps under- or overflows in double precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRates:
    """The rate and the fraction N_k / N of tokens of each class; both zero for a class without tokens."""

    rates: Float[Tensor, "k"]
    weights: Float[Tensor, "k"]

    @property
    def compression(self) -> Float[Tensor, ""]:
        """Return R^c, the rate of tokens coded class by class."""
        return (self.weights * self.rates).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateReduction:
    """R of all tokens, R^c of their classes, and the difference, which is never negative."""

    expansion: Float[Tensor, ""]
    compression: Float[Tensor, ""]

    @property
    def value(self) -> Float[Tensor, ""]:
        """Return Delta R = R - R^c."""
        return self.expansion - self.compression


def coding_rate(z: Float[Tensor, "*b n d"], *, eps: float = 0.5) -> Float[Tensor, "*b"]:
    r"""Return R(Z; eps) of each set of tokens.

    .. math:: R = \tfrac12 \log\det(I + \alpha Z^T Z) = \tfrac12 \sum_i \log(1 + \alpha \sigma_i^2)

    In nats, for all tokens of a set together. Computed on the smaller of the two sides, in single precision at least.
    Warns with `RoundingNoiseWarning` if the rate counts the rounding noise of the tokens' dtype.
    """
    _check_tokens(z, eps)
    warn_of_noise(z, dtype=z.dtype, eps=eps)
    return log_det(z, a=_alpha(z, eps)) / 2


def subspace_rates(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, eps: float = 0.5
) -> Float[Tensor, "*b k"]:
    r"""Return R(Z U_k; eps) in each subspace; R^c(Z | U) is their sum.

    .. math:: R(Z U_k) = \tfrac12 \log\det(I + \tfrac{p}{n \epsilon^2} U_k^T Z^T Z U_k)

    The columns of U_k should be orthonormal; this is not checked.
    """
    _check_tokens(z, eps)
    projected = _projected(z, bases)
    warn_of_noise(projected, dtype=z.dtype, eps=eps)
    return log_det(projected, a=_alpha(projected, eps)) / 2


def class_rates(
    z: Float[Tensor, "n d"],
    *,
    labels: Int[Tensor, "n"] | None = None,
    membership: Float[Tensor, "k n"] | None = None,
    eps: float = 0.5,
) -> ClassRates:
    r"""Return the rate of each class, from labels 0 to k - 1 or memberships Pi_k in [0, 1] of each token in each class.

    .. math:: R_k = \tfrac12 \log\det(I + \tfrac{d}{N_k \epsilon^2} Z^T \Pi_k Z), \qquad N_k = \operatorname{tr} \Pi_k

    A class without tokens has rate zero and weight zero. Gradients do not flow into memberships.
    """
    _check_tokens(z, eps)
    if z.ndim != 2:
        raise ShapeError(f"expected tokens (n, d), one set at a time; got {tuple(z.shape)}")
    warn_of_noise(z, dtype=z.dtype, eps=eps)
    parts = _by_labels(z, labels) if membership is None else _by_membership(z, labels, membership)
    wide = torch.promote_types(z.dtype, torch.float32)
    rates = [
        log_det(rows, a=z.shape[-1] / (size * eps**2)) / 2 if size > 0 else z.new_zeros((), dtype=wide)
        for rows, size in parts
    ]
    weights = torch.tensor([size / len(z) for _, size in parts], dtype=wide, device=z.device)
    return ClassRates(rates=torch.stack(rates), weights=weights)


def rate_reduction(
    z: Float[Tensor, "n d"],
    *,
    labels: Int[Tensor, "n"] | None = None,
    membership: Float[Tensor, "k n"] | None = None,
    eps: float = 0.5,
) -> RateReduction:
    """Return R, R^c and Delta R = R - R^c of tokens and their classes; see `class_rates`.

    The memberships of each token must sum to one over the classes.
    """
    if membership is not None and not bool(((membership.double().sum(dim=0) - 1).abs() < 1e-3).all()):
        raise InputError("expected memberships that sum to one over the classes, for each token")
    parts = class_rates(z, labels=labels, membership=membership, eps=eps)
    expansion = log_det(z, a=_alpha(z, eps)) / 2
    return RateReduction(expansion=expansion, compression=parts.compression)


def rate_gradient(z: Float[Tensor, "*b n d"], *, eps: float = 0.5) -> Float[Tensor, "*b n d"]:
    """Return the gradient of R in Z, alpha Z (I + alpha Z^T Z)^-1, without an autograd graph."""
    _check_tokens(z, eps)
    return log_det_gradient(z, a=_alpha(z, eps)) / 2


def subspace_rate_gradient(
    z: Float[Tensor, "*b n d"], bases: Float[Tensor, "k d p"], *, eps: float = 0.5
) -> Float[Tensor, "*b n d"]:
    """Return the gradient of R^c(Z | U) in Z: sum a V_k (I + a V_k^T V_k)^-1 U_k^T, V_k = Z U_k, a = p / (n eps^2)."""
    _check_tokens(z, eps)
    projected = _projected(z, bases)
    pulled = log_det_gradient(projected, a=_alpha(projected, eps)) / 2
    gradient: Tensor = (pulled @ bases.to(pulled.dtype).mT).sum(dim=-3)
    return gradient


def numerical_rank(z: Float[Tensor, "*b n d"]) -> Int[Tensor, "*b"]:
    """Return the number of singular values above max(n, d) times the machine epsilon of z's dtype times the largest.

    As eps falls, R grows like this rank times log(1 / eps).
    """
    if not bool(z.isfinite().all()):
        raise InputError("expected finite tokens; got NaN or infinity: look for a token that overflowed")
    values = torch.linalg.svdvals(z.detach().double())
    least = values[..., :1] * max(z.shape[-2:]) * machine_epsilon(z.dtype)
    rank: Tensor = (values > least).sum(dim=-1)
    return rank


def check_eps(eps: float) -> None:
    """Raise `InputError` unless eps is positive and its square is a double-precision number."""
    if not SMALLEST_EPS <= eps <= 1 / SMALLEST_EPS:
        raise InputError(
            f"expected eps > 0, the error of coded tokens, from {SMALLEST_EPS:g} to {1 / SMALLEST_EPS:g}; got {eps}"
        )


def _check_tokens(z: Tensor, eps: float) -> None:
    check_eps(eps)
    if z.ndim < 2 or z.shape[-1] == 0:
        raise ShapeError(f"expected tokens (..., n, d) with d > 0; got {tuple(z.shape)}")
    if z.shape[-2] == 0:
        raise InputError("expected at least one token; got none")
    if not z.is_floating_point():
        raise InputError(f"expected tokens of a floating dtype; got {z.dtype}")


def _alpha(z: Tensor, eps: float) -> float:
    return z.shape[-1] / (z.shape[-2] * eps**2)


def _projected(z: Tensor, bases: Tensor) -> Tensor:
    if bases.ndim != 3 or bases.shape[-2] != z.shape[-1] or bases.shape[-1] == 0:
        got = f"tokens {tuple(z.shape)} and bases {tuple(bases.shape)}"
        raise ShapeError(f"expected tokens (..., n, d) and bases (k, d, p) with p > 0; got {got}")
    wide = torch.promote_types(z.dtype, torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        return z.to(wide).unsqueeze(-3) @ bases.to(wide)


def _by_labels(z: Tensor, labels: Tensor | None) -> list[tuple[Tensor, float]]:
    if labels is None:
        raise InputError("expected labels or a membership; got neither")
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"expected integer labels; got {labels.dtype}: pass soft labels as membership")
    if labels.shape != z.shape[:1] or int(labels.min()) < 0:
        raise InputError(
            f"expected {len(z)} labels of at least 0; got shape {tuple(labels.shape)}, lowest {int(labels.min())}"
        )
    if int(labels.max()) > MOST_CLASSES:
        raise InputError(f"expected labels up to {MOST_CLASSES}; got {int(labels.max())}: number the classes from 0")
    rows = [z[labels == k] for k in range(int(labels.max()) + 1)]
    return [(tokens, float(len(tokens))) for tokens in rows]


def _by_membership(z: Tensor, labels: Tensor | None, membership: Tensor) -> list[tuple[Tensor, float]]:
    if labels is not None:
        raise InputError("expected labels or a membership; got both")
    if membership.ndim != 2 or membership.shape[1] != len(z):
        raise ShapeError(f"expected membership (k, n) = (k, {len(z)}); got {tuple(membership.shape)}")
    if membership.requires_grad:
        raise InputError("expected a membership without gradient; call membership.detach()")
    if not bool(((membership >= 0) & (membership <= 1)).all()):
        raise InputError("expected every membership between 0 and 1")
    roots = membership.to(torch.promote_types(z.dtype, torch.float32)).sqrt()
    return [(z * root[:, None], float(weight.double().sum())) for root, weight in zip(roots, membership, strict=True)]


NOTABLE = 0.01
"""Threshold for a warning, of alpha m s^2 (the noise of a direction without signal) and of the excess in nats."""


class RoundingNoiseWarning(UserWarning):
    """A coding rate counts the rounding noise of its tokens as if it were signal."""


def rounding_size(z: Float[Tensor, "*b n d"], *, dtype: torch.dtype) -> Float[Tensor, "*b"]:
    r"""Return the root mean square s of the rounding error of tokens of this size.

    .. math:: s = 0.4\, u \operatorname{rms}(z)

    u is half the machine epsilon, 2^-8 for bfloat16. An error is uniform within u times the power of two below the
    entry. Hence the factor 1 / sqrt 3 times the mean ratio of that power to the entry, which is about .7.
    """
    return 0.2 * machine_epsilon(dtype) * z.detach().double().square().mean(dim=(-2, -1)).sqrt()


def predicted_excess(z: Float[Tensor, "n d"], *, dtype: torch.dtype, eps: float) -> float:
    r"""Return the estimated increase of the tokens' rate by rounding to a dtype.

    .. math:: \tfrac12 \sum_i \log\frac{1 + \alpha (\sigma_i^2 + m s^2)}{1 + \alpha \sigma_i^2}, \qquad
        \alpha = \frac{d}{n \epsilon^2},\ m = \max(n, d)

    Noise adds m s^2 to each squared singular value sigma_i^2 on average. Singular values up to s (sqrt n + sqrt d) are
    taken to be noise alone. For rank r and n >= d this is about (d - r) / 2 times log(1 + d s^2 / eps^2).
    """
    n, d = z.shape
    if z.numel() == 0:
        raise ShapeError(f"expected tokens (n, d) with entries; got {tuple(z.shape)}")
    check_finite("tokens", z.detach())
    alpha, s = d / (n * eps**2), float(rounding_size(z, dtype=dtype))
    values = torch.linalg.svdvals(z.detach().double())
    added = max(n, d) * s**2
    clean = torch.where(values > s * (math.sqrt(n) + math.sqrt(d)), values.square() - added, 0).clamp_min(0)
    return 0.5 * float((alpha * added / (1 + alpha * clean)).log1p().sum())


def warn_of_noise(z: Float[Tensor, "*b n d"], *, dtype: torch.dtype, eps: float) -> None:
    """Warn if the rate of tokens stored in this dtype counts their rounding noise.

    In single and double precision only a tiny eps can do this; larger ones return at once.
    """
    n, d = z.shape[-2:]
    if eps > 2.0**13 * machine_epsilon(dtype) or not z.numel():
        return
    if functorch_active():
        return  # numbers cannot be read there
    sizes = rounding_size(z, dtype=dtype).flatten()
    worst = int(sizes.nan_to_num().argmax())
    if not d / (n * eps**2) * max(n, d) * float(sizes[worst]) ** 2 > NOTABLE:
        return
    excess = predicted_excess(z.reshape(-1, n, d)[worst], dtype=dtype, eps=eps)
    if excess > NOTABLE:
        warnings.warn(
            f"the coding rate counts the rounding of {str(dtype).removeprefix('torch.')} tokens as signal: "
            f"at eps = {eps:g} it is too high by about {excess:.3g} nats; "
            "use tokens of higher precision, or a larger eps",
            RoundingNoiseWarning,
            stacklevel=3,
        )
