"""Attention on images: pixels are tokens, and their order is only that of reading (rows D)."""

from functools import partial

import torch
from torch import Tensor

from clearhead.operators.spatial import fold, spatial_attention, unfold
from clearhead.theories.statement import Statement, drawn
from clearhead.theories.symmetry.forms import Weights, attention, drawn_weights, self_attention
from clearhead.theories.symmetry.statement import SLIDES, apart, shape_error

__all__ = ["IMAGE"]

CHANNELS, HEAD, OUT = 17, 5, 3
HEIGHT, WIDTH = 7, 5


def _weights(dtype: torch.dtype) -> Weights:
    return drawn_weights((CHANNELS,) * 3, key=HEAD, value=OUT, seed=2, dtype=dtype)


def _image(dtype: torch.dtype, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return drawn(1, CHANNELS, height, width, seed=9, dtype=dtype)


def _d1(dtype: torch.dtype) -> float:
    image = _image(dtype)
    fibres = torch.stack([image[:, :, i // WIDTH, i % WIDTH] for i in range(HEIGHT * WIDTH)], dim=1)
    return max(apart(fold(unfold(image), (HEIGHT, WIDTH)), image), apart(unfold(image), fibres))


def _d1_control(dtype: torch.dtype) -> float:
    image = _image(dtype)
    return apart(fold(unfold(image), (WIDTH, HEIGHT)).mT, image)


def _two_orders(dtype: torch.dtype, *, mixed: bool) -> float:
    """Tokens row by row against tokens column by column, as Kolda unfolds; `mixed` folds them back by the other."""
    image, w = _image(dtype), _weights(dtype)
    by_rows = fold(self_attention(unfold(image), w), (HEIGHT, WIDTH))
    tokens = self_attention(unfold(image.mT), w)
    return apart(fold(tokens, (HEIGHT, WIDTH)) if mixed else fold(tokens, (WIDTH, HEIGHT)).mT, by_rows)


def _resized(dtype: torch.dtype, *, swapped: bool) -> float:
    """Queries from a larger and from a smaller image than keys and values; an output pixel beside its own query."""
    operator = partial(attention, weights=_weights(dtype))
    errors = []
    for height, width in ((11, 13), (2, 3)):
        image, asking = _image(dtype), _image(dtype, height, width)
        q, k = (image, asking) if swapped else (asking, image)
        found = spatial_attention(q, k, k, operator=operator)
        pixel = operator(q[:, None, :, -1, 0], unfold(k), unfold(k))[:, 0]
        errors.append(shape_error(found, (1, OUT, height, width)) + apart(found[..., -1, 0], pixel))
    return min(errors) if swapped else max(errors)


_SAID = f"{SLIDES}, higher-order data"

IMAGE = (
    Statement("D1", "unfolding an image gives its fibres as tokens; folding gives the image back", _d1,
              "height and width exchanged", _d1_control, _SAID),
    Statement("D2", "the order in which an image is unfolded does not matter", partial(_two_orders, mixed=False),
              "folded by the other order", partial(_two_orders, mixed=True), _SAID),
    Statement("D3", "the output has the size of the query's image, larger or smaller than the keys'",
              partial(_resized, swapped=False),
              "images exchanged", partial(_resized, swapped=True), _SAID),
)  # fmt: skip
