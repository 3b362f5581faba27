r"""Subspace attention with a threshold in place of the softmax, which denoises tokens layer by layer.

Source: Wang et al. 2025 (arXiv 2506.03790). Each of n tokens lies in one of K orthogonal subspaces of dimension p: its
coordinates have standard deviation 1 there and delta in the others. The signal-to-noise ratio of class k is
:math:`\|Z_k U_k\|` over the norm of the rest of :math:`Z_k`. The theorem: let phi be tau where a softmax weight exceeds
tau and 0 elsewhere, with :math:`1/2 < \tau \le 1 / (1 + n e^{-9p/32})`. Then a layer

.. math:: z + \eta \sum_k U_k U_k^T \phi\, z

multiplies every ratio by exactly :math:`1 + \eta\tau`. It holds for large p and small delta; `growth` shows where it
ends for finite sizes: the checks find it exact in the first layer, not in the third.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from clearhead.shapes import Float, Int
from clearhead_lab.theorems.coding_rate.rate import DENOISING
from clearhead_lab.theorems.theorem import Theorem

RATE = 0.5
"""eta of all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyTokens:
    """Tokens, the bases of the subspaces, and the index of the subspace that each token belongs to."""

    tokens: Float[Tensor, "n d"]
    bases: Float[Tensor, "k d p"]
    subspace: Int[Tensor, "n"]


def denoised(z: Float[Tensor, "n d"], bases: Float[Tensor, "k d p"], threshold: float) -> Float[Tensor, "n d"]:
    """Return z + eta sum_k U_k U_k^T phi z, the tokens after a layer."""
    v = z @ bases
    weights = threshold * ((v @ v.mT).softmax(dim=-1) > threshold).to(z.dtype)
    attended: Tensor = (weights @ v @ bases.mT).sum(dim=0)
    return z + RATE * attended


def middle_threshold(n: int, p: int) -> float:
    """Return the middle of the theorem's range of thresholds."""
    return (0.5 + 1 / (1 + n * math.exp(-9 * p / 32))) / 2


def draw_noisy_tokens(
    *, n: int, k: int, p: int, noise: float, seed: int, dtype: torch.dtype = torch.float64
) -> NoisyTokens:
    """Return n random tokens of width k p, spread evenly over k subspaces; `noise` is delta."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(k * p, k * p, generator=generator, dtype=torch.float64))[0]
    bases = basis.reshape(k * p, k, p).movedim(1, 0)
    coordinates = torch.randn(n, k, p, generator=generator, dtype=torch.float64)
    subspace = torch.arange(n) % k
    scales = torch.where(torch.arange(k) == subspace[:, None], 1.0, noise).double()
    tokens = torch.einsum("nkp,kdp->nd", coordinates * scales[..., None], bases)
    return NoisyTokens(tokens=tokens.to(dtype), bases=bases.to(dtype), subspace=subspace)


def predicted_growth(n: int, p: int) -> float:
    """Return 1 + eta tau at the middle threshold."""
    return 1 + RATE * middle_threshold(n, p)


def growth(noisy: NoisyTokens, *, layers: int) -> Float[Tensor, "l k"]:
    """Return the factor by which each layer with the middle threshold multiplies every class's ratio."""
    threshold = middle_threshold(len(noisy.tokens), noisy.bases.shape[-1])
    z, factors = noisy.tokens, []
    before = _signal_to_noise(z, noisy)
    for _ in range(layers):
        z = denoised(z, noisy.bases, threshold)
        after = _signal_to_noise(z, noisy)
        factors.append(after / before)
        before = after
    return torch.stack(factors)


def _signal_to_noise(z: Tensor, noisy: NoisyTokens) -> Tensor:
    energies = (z @ noisy.bases).square().sum(dim=-1)
    by_class = [energies[:, noisy.subspace == k].sum(dim=-1) for k in range(len(noisy.bases))]
    return torch.stack([(e[k] / (e.sum() - e[k])).sqrt() for k, e in enumerate(by_class)])


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
