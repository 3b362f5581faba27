"""Theorems on attention over images (D1 to D3): pixels are tokens, and their order is arbitrary."""

from functools import partial

import torch
from torch import Tensor

from clearhead.operators.spatial import fold, spatial_attention, unfold
from clearhead_lab.theorems.symmetry.forms import (
    SLIDES,
    Weights,
    attention,
    random_weights,
    self_attention,
    shape_error,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

CHANNELS, HEAD, OUT = 17, 5, 3
HEIGHT, WIDTH = 7, 5


def _weights(dtype: torch.dtype) -> Weights:
    return random_weights((CHANNELS,) * 3, key_width=HEAD, value_width=OUT, seed=2, dtype=dtype)


def _image(dtype: torch.dtype, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return normal_tensor(1, CHANNELS, height, width, seed=9, dtype=dtype)


def _unfolding(dtype: torch.dtype) -> float:
    image = _image(dtype)
    fibres = torch.stack([image[:, :, i // WIDTH, i % WIDTH] for i in range(HEIGHT * WIDTH)], dim=1)
    folded = fold(unfold(image), (HEIGHT, WIDTH))
    return max(relative_residual(folded, image), relative_residual(unfold(image), fibres))


def _folding_transposed(dtype: torch.dtype) -> float:
    image = _image(dtype)
    return relative_residual(fold(unfold(image), (WIDTH, HEIGHT)).mT, image)


def _unfolding_order(dtype: torch.dtype, *, mixed: bool) -> float:
    """Compare tokens read row by row with tokens read column by column; `mixed` folds the latter row by row."""
    image, w = _image(dtype), _weights(dtype)
    by_rows = fold(self_attention(unfold(image), w), (HEIGHT, WIDTH))
    tokens = self_attention(unfold(image.mT), w)
    by_columns = fold(tokens, (HEIGHT, WIDTH)) if mixed else fold(tokens, (WIDTH, HEIGHT)).mT
    return relative_residual(by_columns, by_rows)


def _output_size(dtype: torch.dtype, *, swapped: bool) -> float:
    """Compare size and one pixel of the output for queries from larger and smaller images than the keys."""
    operator = partial(attention, weights=_weights(dtype))
    errors = []
    for height, width in ((11, 13), (2, 3)):
        key_image, query_image = _image(dtype), _image(dtype, height, width)
        q, k = (key_image, query_image) if swapped else (query_image, key_image)
        out = spatial_attention(q, k, k, operator=operator)
        pixel = operator(q[:, None, :, -1, 0], unfold(k), unfold(k))[:, 0]
        errors.append(shape_error(out, (1, OUT, height, width)) + relative_residual(out[..., -1, 0], pixel))
    return min(errors) if swapped else max(errors)


_SECTION = f"{SLIDES}, higher-order data"

IMAGE_THEOREMS = (
    Theorem("D1", "unfolding an image gives its fibres as tokens, and folding restores the image", _unfolding,
            "height and width exchanged", _folding_transposed, _SECTION),
    Theorem("D2", "the order in which an image is unfolded does not matter", partial(_unfolding_order, mixed=False),
            "folded in the other order", partial(_unfolding_order, mixed=True), _SECTION),
    Theorem("D3", "the output has the size of the query image, whatever the size of the key image",
            partial(_output_size, swapped=False),
            "query and key image exchanged", partial(_output_size, swapped=True), _SECTION),
)  # fmt: skip
