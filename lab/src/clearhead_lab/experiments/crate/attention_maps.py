r"""Emergent segmentation: attention maps as masks of the object in the image (Yu et al. 2023, arXiv 2308.16271).

The source takes the patches that hold most of the class token's attention and calls the result a segmentation. To test
that, masks are compared with those drawn by people, and with controls that ignore the image: a blob in the centre, the
whole image, and the same network before training. The best head must be chosen on other images than it is scored on.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.numerics.moments import Array
from clearhead.shapes import Bool, Float, ShapeError


def attention_maps(heads: Heads, *, grid: tuple[int, int], token: int = 0, first: int = 1) -> Float[Tensor, "b h y x"]:
    """Return the attention of one token to every patch, by head.

    grid: rows and columns of patches, which are the tokens from `first` on, row by row
    token: whose attention; the class token by default

    Weights on other tokens than patches are left out and the rest is not rescaled, so a map need not sum to one.
    """
    y, x = grid
    if heads.bias is not None or heads.softcap is not None or heads.sinks is not None or heads.windows != 1:
        raise InputError("attention maps support layers without biases, caps, sinks and windows only")
    if heads.k.shape[-2] != first + y * x:
        raise ShapeError(
            f"expected {first} tokens and {y} x {x} patches, {first + y * x} in all; got {heads.k.shape[-2]}"
        )
    scores = heads.scale * (heads.q[:, :, token, None, :].double() * heads.k.double()).sum(dim=-1)
    if heads.mask is not None:
        visible = heads.mask.expand(*heads.q.shape[:3], heads.k.shape[-2])[:, :, token]
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights[..., first:].reshape(*weights.shape[:2], y, x)


def foreground(maps: Float[Tensor, "*b y x"], *, mass: float = 0.6) -> Bool[Tensor, "*b y x"]:
    """Return the fewest patches that together hold at least this share of the map.

    Of patches with equal weight the first are taken, so a constant map gives its upper rows.
    """
    if not 0 < mass <= 1:
        raise InputError(f"expected 0 < mass <= 1; got {mass}")
    flat = maps.flatten(-2)
    if not bool(torch.isfinite(flat).all()) or bool((flat < 0).any()):
        raise InputError("expected finite, nonnegative weights")
    ordered, order = flat.sort(dim=-1, descending=True, stable=True)
    share = ordered.cumsum(dim=-1)
    before = share - ordered
    selected = (before < mass * share[..., -1:]) & (ordered > 0)
    return torch.zeros_like(flat, dtype=torch.bool).scatter(-1, order, selected).reshape(maps.shape)


def upsampled(patches: Bool[Tensor, "*b y x"], size: tuple[int, int]) -> Bool[Tensor, "*b height width"]:
    """Repeat every patch for the pixels that it covers."""
    y, x = patches.shape[-2:]
    if size[0] % y or size[1] % x:
        raise ShapeError(f"expected an image that {y} x {x} patches tile; got {size[0]} x {size[1]} pixels")
    return patches.repeat_interleave(size[0] // y, dim=-2).repeat_interleave(size[1] // x, dim=-1)


def centre_prior(grid: tuple[int, int], *, spread: float = 0.25) -> Float[Tensor, "y x"]:
    """Return a Gaussian in the centre; `spread` is its standard deviation relative to the side of the image."""
    y, x = (((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5) / spread for n in grid)
    return torch.exp(-(y[:, None] ** 2 + x[None, :] ** 2) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Intersection over union of masks by image: of the object, and the mean of object and background.

    If a class is in neither mask, `object` is NaN and the class is left out of `mean`.
    """

    object: Array
    mean: Array


def overlap(
    predicted: Bool[Tensor, "*b y x"], truth: Bool[Tensor, "*b y x"], *, counted: Bool[Tensor, "*b y x"] | None = None
) -> Overlap:
    """Return the intersections over unions of masks by image. `counted` marks the pixels that count."""
    if predicted.shape != truth.shape or (counted is not None and counted.shape != truth.shape):
        raise ShapeError(f"expected masks of one shape; got {tuple(predicted.shape)} and {tuple(truth.shape)}")
    keep = torch.ones_like(truth) if counted is None else counted

    def share(a: Tensor, b: Tensor) -> Array:
        union = ((a | b) & keep).flatten(-2).sum(dim=-1).double()
        common = (a & b & keep).flatten(-2).sum(dim=-1).double()
        ratio: Array = torch.where(union > 0, common / union, torch.nan).numpy()
        return ratio

    both = np.stack([share(predicted, truth), share(~predicted, ~truth)])
    known = np.isfinite(both)
    mean = np.where(known, both, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return Overlap(object=both[0], mean=np.where(known.any(axis=0), mean, np.nan))


def best_head(by_head: Array) -> int:
    """Return the head with the highest mean over images (images, heads). Score it on other images than these."""
    return int(np.nanmean(by_head, axis=0).argmax())
