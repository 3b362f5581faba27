r"""Thresholding: the proximal steps of sparse and low-rank models.

With :math:`\operatorname{prox}_f(x) = \arg\min_y f(y) + |y - x|^2 / 2`, soft thresholding is that of t times the sum of
absolute values, and singular value thresholding (Cai, Candes and Shen 2010) that of t times the nuclear norm. Hard
thresholding is the one of t^2 / 2 times the number of entries that are not zero.
"""

import torch
from torch import Tensor

from clearhead.shapes import Float, check_finite

__all__ = ["hard_threshold", "singular_value_threshold", "soft_threshold"]


def soft_threshold(x: Float[Tensor, "..."], t: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
    r"""Every entry moved towards zero by t, and not past it: :math:`\operatorname{sign}(x) \max(|x| - t, 0)`.

    What it takes away, x - soft_threshold(x, t), is x clamped to [-t, t].
    """
    return x.sign() * (x.abs() - t).clamp_min(0)


def hard_threshold(x: Float[Tensor, "..."], t: Float[Tensor, "..."] | float) -> Float[Tensor, "..."]:
    """The entries beyond t as they are, and zero for the others."""
    return torch.where(x.abs() <= t, 0, x)  # NaN stays


def singular_value_threshold(x: Float[Tensor, "*b n m"], t: Float[Tensor, "*b"] | float) -> Float[Tensor, "*b n m"]:
    r"""x with its singular values softly thresholded: :math:`U \max(\Sigma - t, 0) V^T` where x is U Sigma V^T."""
    check_finite("matrices", x)
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    at_least = t[..., None] if isinstance(t, Tensor) else t
    kept: Tensor = (u * (values - at_least).clamp_min(0)[..., None, :]) @ v
    return kept
