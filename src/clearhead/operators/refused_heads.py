"""Heads whose numbers spread too widely for symmetric kernels, computed the usual way, k (h, n, d) and seen (h, n).

They are rare, so these are short rather than fast. The gradients are written out, for torch keeps no record of what
happens inside an operator of its library.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead.compiled.calls import Schedule

__all__ = ["plain", "plain_backward", "plain_pursuit", "plain_pursuit_backward", "seen_at"]

_ROWS_AT_ONCE = 256


def seen_at(seen: Tensor | None, at: Tensor) -> Tensor | None:
    """The tokens that are there in each of the heads `at` (b, h)."""
    return None if seen is None else seen.unsqueeze(1).expand(-1, at.shape[1], -1)[at]


def plain(k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """Symmetric attention by torch's own kernel."""
    mask = None if seen is None else seen.unsqueeze(-2).expand(-1, k.shape[-2], -1)
    return scaled_dot_product_attention(k, k, v, attn_mask=mask, scale=scale)


def plain_backward(
    gradient: Tensor, k: Tensor, v: Tensor, out: Tensor, seen: Tensor | None, scale: float
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


@dataclass(frozen=True, slots=True)
class _Iteration:
    z: Tensor
    q: Tensor
    out: Tensor


def _iterations(k: Tensor, v: Tensor, thresholds: Tensor, schedule: Schedule) -> list[_Iteration]:
    t = thresholds[:, None, None]
    last = dual = torch.zeros_like(k)
    done = []
    for _ in range(schedule.iterations):
        z = k - last + dual
        c = z.clamp(-t, t)
        q = last - schedule.pull * dual + c
        out = plain(q, v, schedule.seen, schedule.scale)
        done.append(_Iteration(z, q, out))
        last, dual = out, c + last - out
    return done


def plain_pursuit(k: Tensor, v: Tensor, thresholds: Tensor, schedule: Schedule) -> Tensor:
    """The last iterate of principal attention pursuit."""
    return _iterations(k, v, thresholds, schedule)[-1].out


def plain_pursuit_backward(
    gradient: Tensor,
    k: Tensor,
    v: Tensor,
    thresholds: Tensor,
    schedule: Schedule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of that for k, v and the thresholds."""
    t = thresholds[:, None, None]
    to_k, to_v, to_t = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(thresholds)
    by_last, by_dual = gradient, torch.zeros_like(gradient)
    for step in reversed(_iterations(k, v, thresholds, schedule)):
        by_q, by_v = plain_backward(by_last - by_dual, step.q, v, step.out, schedule.seen, schedule.scale)
        by_c = by_dual + by_q
        by_z = by_c.where(step.z.abs() <= t, 0)
        to_k, to_v = to_k + by_z, to_v + by_v
        to_t = to_t + ((by_c - by_z) * step.z.sign()).sum(dim=(-2, -1))
        by_last, by_dual = by_c - by_z, by_z - schedule.pull * by_q
    return to_k, to_v, to_t
