r"""Subspace attention with a threshold in place of the softmax, which denoises tokens layer by layer.

Tokens lie in one of K orthogonal subspaces each, with coordinates of size one there and of size delta in the others.
The signal-to-noise ratio of class k is |Z_k U_k| over what is left of |Z_k|. The theorem (Wang et al. 2025, arXiv
2506.03790): with phi = tau where a softmax weight is above tau, and 0 elsewhere, tau from above 1/2 up to
1 / (1 + n e^(-9 p / 32)), a layer z + eta sum U_k U_k^T phi z raises every ratio by exactly 1 + eta tau. It is one on
large p and small delta; finite sizes have a boundary, which `growth` shows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Float, Int

__all__ = ["Denoising", "NoisyTokens", "draw_noisy_tokens", "growth", "middle_threshold", "predicted_growth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyTokens:
    """Tokens, their subspaces, and the one in which each lies."""

    tokens: Float[Tensor, "n d"]
    bases: Float[Tensor, "k d p"]
    own: Int[Tensor, "n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoising:
    """A layer's eta and tau; without tau it has the plain softmax."""

    rate: float = 0.5
    threshold: float | None = None

    def step(self, z: Float[Tensor, "n d"], bases: Float[Tensor, "k d p"]) -> Float[Tensor, "n d"]:
        """One layer."""
        v = z @ bases
        weights = (v @ v.mT).softmax(dim=-1)
        if self.threshold is not None:
            weights = self.threshold * (weights > self.threshold).to(z.dtype)
        added: Tensor = (weights @ v @ bases.mT).sum(dim=0)
        return z + self.rate * added


def middle_threshold(n: int, p: int) -> float:
    """The middle of the range of the theorem."""
    return (0.5 + 1 / (1 + n * math.exp(-9 * p / 32))) / 2


def draw_noisy_tokens(
    *, n: int, k: int, p: int, noise: float, seed: int, dtype: torch.dtype = torch.float64
) -> NoisyTokens:
    """Tokens of d = k p dimensions, as many in every subspace as in any other up to one."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.linalg.qr(torch.randn(k * p, k * p, generator=generator, dtype=torch.float64))[0]
    bases = whole.reshape(k * p, k, p).movedim(1, 0)
    inner = torch.randn(n, k, p, generator=generator, dtype=torch.float64)
    own = torch.arange(n) % k
    sizes = torch.where(torch.arange(k) == own[:, None], 1.0, noise).double()
    tokens = torch.einsum("nkp,kdp->nd", inner * sizes[..., None], bases)
    return NoisyTokens(tokens=tokens.to(dtype), bases=bases.to(dtype), own=own)


def predicted_growth(n: int, p: int, *, rate: float = 0.5) -> float:
    """1 + eta tau at the middle threshold."""
    return 1 + rate * middle_threshold(n, p)


def growth(drawn: NoisyTokens, *, layers: int, rate: float = 0.5, plain: bool = False) -> Float[Tensor, "l k"]:
    """By what each layer multiplies the ratio of every class, with the middle threshold or with the plain softmax."""
    n, p = len(drawn.tokens), drawn.bases.shape[-1]
    layer = Denoising(rate=rate, threshold=None if plain else middle_threshold(n, p))
    z, found = drawn.tokens, []
    before = _ratios(z, drawn)
    for _ in range(layers):
        z = layer.step(z, drawn.bases)
        after = _ratios(z, drawn)
        found.append(after / before)
        before = after
    return torch.stack(found)


def _ratios(z: Tensor, drawn: NoisyTokens) -> Tensor:
    energies = (z @ drawn.bases).square().sum(dim=-1)
    each = [energies[:, drawn.own == k].sum(dim=-1) for k in range(len(drawn.bases))]
    return torch.stack([(e[k] / (e.sum() - e[k])).sqrt() for k, e in enumerate(each)])
