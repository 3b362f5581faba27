"""The statement on signal-to-noise ratios, exact in the first layer, and where it ends."""

import torch

from clearhead.theories.coding_rate.denoising import draw_noisy_tokens, growth, predicted_growth
from clearhead.theories.coding_rate.statement import DENOISING
from clearhead.theories.statement import Statement

__all__ = ["DENOISED"]

N, K = 256, 4


def _missed(dtype: torch.dtype, *, noise: float, layer: int = 0, plain: bool = False) -> float:
    """How far any class's growth in a layer is from 1 + eta tau."""
    worst = 0.0
    for p in (32, 64):
        drawn = draw_noisy_tokens(n=N, k=K, p=p, noise=noise, seed=0, dtype=dtype)
        found = growth(drawn, layers=layer + 1, plain=plain)[layer]
        worst = max(worst, float((found / predicted_growth(N, p) - 1).abs().max()))
    return worst


def _kept_growth(dtype: torch.dtype, *, layer: int) -> float:
    """By how much the growth of the class that grows most in a layer exceeds 19 / 20 of that predicted."""
    most = 0.0
    for p in (32, 64):
        found = growth(draw_noisy_tokens(n=N, k=K, p=p, noise=0.2, seed=0, dtype=dtype), layers=layer + 1)[layer]
        most = max(most, float(found.max()) / predicted_growth(N, p) - 0.95)
    return max(0.0, most)


DENOISED = (
    Statement(
        "R18",
        "thresholded attention raises every class's signal-to-noise ratio by 1 + eta tau in the first layer (noise .2)",
        lambda dtype: _missed(dtype, noise=0.2),
        "noise .5",
        lambda dtype: _missed(dtype, noise=0.5),
        DENOISING,
    ),
    Statement(
        "R19",
        "256 tokens with heads of 32 and 64 are too few for more: in the third layer no class grows by 19 / 20 of that",
        lambda dtype: _kept_growth(dtype, layer=2),
        "the first layer",
        lambda dtype: _kept_growth(dtype, layer=0),
        f"{DENOISING}, beyond its sizes",
    ),
)
