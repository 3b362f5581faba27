"""The effect of the rounding of tokens on their coding rate."""

import math
import warnings

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.private_names import functorch_active
from clearhead.shapes import Float, ShapeError, check_finite

__all__ = ["RoundingNoiseWarning", "predicted_excess", "rounding_size", "warn_of_noise"]

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
