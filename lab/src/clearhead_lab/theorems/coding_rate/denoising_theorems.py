"""Theorem on the signal-to-noise ratio under thresholded attention: exact in the first layer, not in the third."""

from functools import cache

import torch
from torch import Tensor

from clearhead_lab.theorems.coding_rate.citations import DENOISING
from clearhead_lab.theorems.coding_rate.denoising import draw_noisy_tokens, growth, predicted_growth
from clearhead_lab.theorems.theorem import Theorem

__all__ = ["DENOISING_THEOREMS"]

TOKENS, CLASSES, WIDTHS = 256, 4, (32, 64)
FIRST, THIRD = 0, 2
"""Layers."""


@cache
def _relative_growth(dtype: torch.dtype, noise: float, layer: int) -> Tensor:
    """Return the growth of every class's ratio in a layer, relative to 1 + eta tau, for both head widths."""
    ratios = []
    for p in WIDTHS:
        tokens = draw_noisy_tokens(n=TOKENS, k=CLASSES, p=p, noise=noise, seed=0, dtype=dtype)
        ratios.append(growth(tokens, layers=layer + 1)[layer] / predicted_growth(TOKENS, p))
    return torch.stack(ratios)


def _largest_error(dtype: torch.dtype, *, noise: float) -> float:
    return float((_relative_growth(dtype, noise, FIRST) - 1).abs().max())


def _above_95_percent(dtype: torch.dtype, *, layer: int) -> float:
    """Return by how much the largest relative growth exceeds 0.95."""
    return max(0.0, float(_relative_growth(dtype, 0.2, layer).max()) - 0.95)


DENOISING_THEOREMS = (
    Theorem(
        "R18",
        "in the first layer, thresholded attention multiplies every signal-to-noise ratio by 1 + eta tau (noise 0.2)",
        lambda dtype: _largest_error(dtype, noise=0.2),
        "noise 0.5",
        lambda dtype: _largest_error(dtype, noise=0.5),
        DENOISING,
    ),
    Theorem(
        "R19",
        "with 256 tokens and heads of width 32 or 64, no ratio grows by 95 % of that factor in the third layer",
        lambda dtype: _above_95_percent(dtype, layer=THIRD),
        "the first layer",
        lambda dtype: _above_95_percent(dtype, layer=FIRST),
        f"{DENOISING}, beyond its sizes",
    ),
)
