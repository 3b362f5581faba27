r"""Emergent segmentation: where a token looks, as a mask of the object in the image (Yu et al. 2023, arXiv 2308.16271).

The source keeps the patches that hold most of the class token's attention and calls the result a segmentation. Whether
it is one shows beside masks drawn by people, and beside what knows nothing of the image: a blob in the middle, all of
it, and the same network before training. A head that was chosen because it fits best must be chosen on other images.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.shapes import Bool, Float, ShapeError

__all__ = ["Overlap", "attention_maps", "best_head", "centre_prior", "foreground", "overlap", "upsampled"]


def attention_maps(heads: Heads, *, grid: tuple[int, int], token: int = 0, first: int = 1) -> Float[Tensor, "b h y x"]:
    """How much of its attention a token gives to every patch, by head.

    grid: rows and columns of patches, which are the tokens from `first` on, row by row
    token: whose attention; the class token by default

    Weights on tokens that are no patches are left out; the rest is given as it is, so a map need not sum to one.
    """
    y, x = grid
    if heads.bias is not None or heads.softcap is not None or heads.sinks is not None or heads.windows != 1:
        raise InputError("a map of attention is made for layers without biases, caps, sinks or windows")
    if heads.k.shape[-2] != first + y * x:
        raise ShapeError(
            f"expected {first} tokens and {y} x {x} patches, {first + y * x} in all; got {heads.k.shape[-2]}"
        )
    scores = heads.scale * (heads.q[:, :, token, None, :].double() * heads.k.double()).sum(dim=-1)
    if heads.mask is not None:
        seen = heads.mask.expand(*heads.q.shape[:3], heads.k.shape[-2])[:, :, token]
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights[..., first:].reshape(*weights.shape[:2], y, x)


def foreground(maps: Float[Tensor, "*b y x"], *, mass: float = 0.6) -> Bool[Tensor, "*b y x"]:
    """The fewest patches that together hold at least this share of the map.

    Of patches with equal weight those that come first are taken, so a map without any peak gives its upper rows.
    """
    if not 0 < mass <= 1:
        raise InputError(f"expected a share of the mass above 0 up to 1; got {mass}")
    flat = maps.flatten(-2)
    if not bool(torch.isfinite(flat).all()) or bool((flat < 0).any()):
        raise InputError("expected finite weights that are not negative")
    ordered, order = flat.sort(dim=-1, descending=True, stable=True)
    share = ordered.cumsum(dim=-1)
    before = share - ordered
    kept = (before < mass * share[..., -1:]) & (ordered > 0)
    return torch.zeros_like(flat, dtype=torch.bool).scatter(-1, order, kept).reshape(maps.shape)


def upsampled(patches: Bool[Tensor, "*b y x"], size: tuple[int, int]) -> Bool[Tensor, "*b height width"]:
    """Every patch as the pixels that it covers."""
    y, x = patches.shape[-2:]
    if size[0] % y or size[1] % x:
        raise ShapeError(f"expected an image that {y} x {x} patches tile; got {size[0]} x {size[1]} pixels")
    return patches.repeat_interleave(size[0] // y, dim=-2).repeat_interleave(size[1] // x, dim=-1)


def centre_prior(grid: tuple[int, int], *, spread: float = 0.25) -> Float[Tensor, "y x"]:
    """A blob in the middle: a normal law whose spread is this share of the image's side."""
    y, x = (((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5) / spread for n in grid)
    return torch.exp(-(y[:, None] ** 2 + x[None, :] ** 2) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How well a mask fits the true one, by image: intersection over union of the object, of both classes on average.

    Undefined where a class is in neither mask: NaN for `object`, and left out of `mean`.
    """

    object: Array
    mean: Array


def overlap(
    found: Bool[Tensor, "*b y x"], truth: Bool[Tensor, "*b y x"], *, counted: Bool[Tensor, "*b y x"] | None = None
) -> Overlap:
    """Intersections over unions of masks, image by image. `counted`: which pixels count; borders may not."""
    if found.shape != truth.shape or (counted is not None and counted.shape != truth.shape):
        raise ShapeError(f"expected masks of one shape; got {tuple(found.shape)} and {tuple(truth.shape)}")
    keep = torch.ones_like(truth) if counted is None else counted

    def share(a: Tensor, b: Tensor) -> Array:
        union = ((a | b) & keep).flatten(-2).sum(dim=-1).double()
        common = (a & b & keep).flatten(-2).sum(dim=-1).double()
        ratio: Array = torch.where(union > 0, common / union, torch.nan).numpy()
        return ratio

    both = np.stack([share(found, truth), share(~found, ~truth)])
    known = np.isfinite(both)
    mean = np.where(known, both, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return Overlap(object=both[0], mean=np.where(known.any(axis=0), mean, np.nan))


def best_head(by_head: Array) -> int:
    """The head of the highest mean over images; by_head: (images, heads). Score it on other images than these."""
    return int(np.nanmean(by_head, axis=0).argmax())
