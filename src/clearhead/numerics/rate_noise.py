"""When the rounding of tokens is counted by their coding rate, and by how much."""

import math
import warnings

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.private_names import functorch_active
from clearhead.shapes import Float, ShapeError, check_finite

__all__ = ["RoundingNoiseWarning", "predicted_excess", "rounding_size", "warn_of_noise"]

WORTH_SAYING = 0.01
"""From here on alpha m s^2, what a direction without signal is counted by, and a predicted excess in nats are told."""


class RoundingNoiseWarning(UserWarning):
    """A coding rate counts the rounding noise of its tokens as if it were signal."""


def rounding_size(z: Float[Tensor, "*b n d"], *, dtype: torch.dtype) -> Float[Tensor, "*b"]:
    r"""The root mean square s of the error with which tokens of this size are stored.

    .. math:: s = 0.4\, u \operatorname{rms}(z)

    u is half the spacing of the dtype at one, 2^-8 for bfloat16. An error is uniform within u times the power of two
    below the entry, hence 1 / sqrt 3 times the mean ratio of that power to the entry, which is about .7.
    """
    return 0.2 * machine_epsilon(dtype) * z.detach().double().square().mean(dim=(-2, -1)).sqrt()


def predicted_excess(z: Float[Tensor, "n d"], *, dtype: torch.dtype, eps: float) -> float:
    r"""By how much rounding to a dtype raised the rate of tokens as they are stored.

    .. math:: \tfrac12 \sum_i \log\frac{1 + \alpha (\sigma_i^2 + m s^2)}{1 + \alpha \sigma_i^2}, \qquad
        \alpha = \frac{d}{n \epsilon^2},\ m = \max(n, d)

    Noise adds m s^2 to every squared singular value sigma_i^2 on average; what does not stand out of it, above
    s (sqrt n + sqrt d), counts as zero without it. Of rank r and with n >= d this is (d - r) / 2 times
    log(1 + d s^2 / eps^2), and little beside.
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
    """Warn where tokens that were stored in this dtype carry noise that their rate counts.

    In single and double precision only a tiny eps can make it so, and nothing is looked at above it.
    """
    n, d = z.shape[-2:]
    if eps > 2.0**13 * machine_epsilon(dtype) or not z.numel():
        return
    if functorch_active():
        return  # numbers cannot be looked at there
    sizes = rounding_size(z, dtype=dtype).flatten()
    worst = int(sizes.nan_to_num().argmax())
    if not d / (n * eps**2) * max(n, d) * float(sizes[worst]) ** 2 > WORTH_SAYING:
        return
    excess = predicted_excess(z.reshape(-1, n, d)[worst], dtype=dtype, eps=eps)
    if excess > WORTH_SAYING:
        warnings.warn(
            f"the rounding of {str(dtype).removeprefix('torch.')} tokens is counted as signal: at eps = {eps:g} the "
            f"rate is too high by about {excess:.3g} nats; take tokens of higher precision, or a larger eps",
            RoundingNoiseWarning,
            stacklevel=3,
        )
