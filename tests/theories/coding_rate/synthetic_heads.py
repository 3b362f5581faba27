"""Synthetic heads: a block that compresses, blocks that do not, and calls with their maps."""

import torch
from torch import Tensor

from clearhead.heads import Heads, LayerNorm, LinearMap, ResidualStream
from clearhead.numerics.coding_rate import subspace_rate_gradient

INPUTS, TOKENS, HEADS, WIDTH, STREAM = 7, 23, 3, 5, 31
"""Three heads of width 5 span about half of the 31 dimensions."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bases(seed: int = 1) -> Tensor:
    """Orthonormal and orthogonal to one another, (h, c, p)."""
    joint = torch.linalg.qr(normal(STREAM, HEADS * WIDTH, seed=seed)).Q
    return joint.reshape(STREAM, HEADS, WIDTH).movedim(1, 0).contiguous()


def heads_of(
    before: Tensor,
    between: Tensor,
    *,
    after: Tensor | None = None,
    maps: Tensor | None = None,
    tied: float | None = None,
    layer: int = 0,
    mask: Tensor | None = None,
    groups: int = 1,
    windows: int = 1,
    stream: bool = True,
    values: bool = True,
    total: Tensor | None = None,
    norm: LayerNorm | None = None,
    linear: bool = True,
) -> Heads:
    """A call whose heads put out their share of what is added; `tied` is the factor on the map of queries and keys.

    total: the sum, if `between` is not the sum but its norm
    """
    i, t, _ = before.shape
    maps = bases() if maps is None else maps
    h, _, f = maps.shape
    parts = normal(i * windows, h, t // windows, f, seed=9)
    total = between if total is None else total
    whole = windows == 1 and maps.shape[1] == before.shape[-1]
    v, out = (torch.einsum("btc,hcf->bhtf", x, maps) for x in (before, total - before)) if whole else (parts, parts)
    read = normal(i, t, maps.shape[1], seed=10)
    of_values = LinearMap(x=read, weight=maps)
    shared = None if tied is None else LinearMap(x=read, weight=tied * maps)
    return Heads(
        layer=layer,
        name=f"block.{layer}",
        q=v,
        k=v,
        v=v,
        out=out,
        scale=1.0,
        mask=mask,
        groups=groups,
        windows=windows,
        queries_from=shared,
        keys_from=shared,
        values_from=of_values if values else None,
        output_weight=maps.mT if linear and whole else None,
        residual_stream=ResidualStream(before=before, total=total, between=between, after=after, norm=norm)
        if stream
        else None,
    )


def tokens(seed: int = 2, inputs: int = INPUTS) -> Tensor:
    """Inputs that differ, with a few strong directions each, as tokens of a sentence have."""
    strength = torch.linspace(3, 0.2, STREAM, dtype=torch.float64)
    turn = torch.linalg.qr(normal(STREAM, STREAM, seed=seed + 50)).Q
    return normal(inputs, TOKENS, STREAM, seed=seed) * strength @ turn


def compressed(z: Tensor, *, eps: float = 0.5, step: float = 0.3) -> Tensor:
    """One step down the gradient of R^c, whose largest curvature is below a = p / (n eps^2)."""
    return z - step * (TOKENS * eps**2 / WIDTH) * subspace_rate_gradient(z, bases(), eps=eps)


def expanded(z: Tensor, *, eps: float = 0.5, step: float = 0.3) -> Tensor:
    """The same step upwards."""
    return 2 * z - compressed(z, eps=eps, step=step)
