"""Heads whose numbers spread too widely for symmetric kernels, computed the usual way, k (h, n, d) and seen (h, n).

They are rare, so this is short rather than fast. The gradient is written out, for torch keeps no record of what happens
inside an operator of its library.
"""

import torch
from torch import Tensor

from clearhead.operators.softmax import fused_attention

__all__ = ["plain", "plain_backward", "seen_at"]

_ROWS_AT_ONCE = 256


def seen_at(seen: Tensor | None, at: Tensor) -> Tensor | None:
    """The tokens that are there in each of the heads `at` (b, h)."""
    return None if seen is None else seen.unsqueeze(1).expand(-1, at.shape[1], -1)[at]


def plain(k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """Symmetric attention by torch's own kernel."""
    mask = None if seen is None else seen.unsqueeze(-2).expand(-1, k.shape[-2], -1)
    return fused_attention(k, k, v, mask=mask, scale=scale)


def plain_backward(
    gradient: Tensor, k: Tensor, v: Tensor, out: Tensor, *, seen: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The textbook gradient, some rows at a time."""
    to_k, to_v = torch.zeros_like(k), torch.zeros_like(v)
    for at in range(0, k.shape[-2], _ROWS_AT_ONCE):
        rows = slice(at, at + _ROWS_AT_ONCE)
        scores = (k[:, rows] * scale) @ k.mT
        if seen is not None:
            scores = scores.masked_fill(~seen.unsqueeze(-2), -torch.inf)
        weights = scores.softmax(dim=-1)
        to_v += weights.mT @ gradient[:, rows]
        by_weights = gradient[:, rows] @ v.mT - (gradient[:, rows] * out[:, rows]).sum(dim=-1, keepdim=True)
        by_scores = weights * by_weights * scale
        to_k[:, rows] += by_scores @ k
        to_k += by_scores.mT @ k[:, rows]
    return to_k, to_v
