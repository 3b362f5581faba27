"""Convolutions beside attention, and the symmetries of images (rows F)."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from clearhead.operators.spatial import spatial_attention, unfold
from clearhead.theories.statement import Statement, drawn
from clearhead.theories.symmetry.forms import Weights, attention, drawn_weights, learned_query
from clearhead.theories.symmetry.groups import (
    GRID,
    bounded_translations,
    dihedral,
    permutations,
    translations,
)
from clearhead.theories.symmetry.measure import (
    Action,
    SymmetryReport,
    equivariance,
    invariance,
)
from clearhead.theories.symmetry.statement import SLIDES, apart

__all__ = ["CONVOLUTION"]

CHANNELS, OUT, HEAD = 3, 5, 2
HEIGHT, WIDTH, SIDE = 7, 5, 7
STRIDE, TALL, BROAD = 2, 6, 10


def _image(dtype: torch.dtype, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return drawn(1, CHANNELS, height, width, seed=40, dtype=dtype)


def _kernel(dtype: torch.dtype, size: int) -> Tensor:
    return drawn(OUT, CHANNELS, size, size, seed=41, dtype=dtype)


def _convolved(image: Tensor, kernel: Tensor, *, mode: str = "circular", stride: int = 1) -> Tensor:
    """Convolution whose output has the image's size, or 1/stride of it."""
    border = (kernel.shape[-1] // 2,) * 4
    return conv2d(pad(image, border, mode=mode), kernel, stride=stride)


def _pixel_permutations(kernel: Tensor) -> list[SymmetryReport]:
    """Under all permutations of 2 x 2 pixels, and under drawn ones of 7 x 5."""
    convolution = partial(_convolved, kernel=kernel, mode="constant")
    return [
        equivariance(convolution, _image(kernel.dtype, *size), permutations(*size, axes=GRID))
        for size in ((2, 2), (HEIGHT, WIDTH))
    ]


def _f1(dtype: torch.dtype) -> float:
    return max(report.largest for report in _pixel_permutations(_kernel(dtype, 1)))


def _f1_control(dtype: torch.dtype) -> float:
    return min(report.control for report in _pixel_permutations(_kernel(dtype, 1)))


def _f2(dtype: torch.dtype) -> float:
    centre = torch.zeros(3, 3, dtype=dtype)
    centre[1, 1] = 1
    return max(report.largest for report in _pixel_permutations(_kernel(dtype, 3) * centre))


def _f2_control(dtype: torch.dtype) -> float:
    """The smaller of both errors: neither property may hold."""
    kernel = _kernel(dtype, 3)
    neither = invariance(partial(_convolved, kernel=kernel), _image(dtype), permutations(HEIGHT, WIDTH, axes=GRID))
    return min(neither.largest, *(report.largest for report in _pixel_permutations(kernel)))


def _wrapped(dtype: torch.dtype, *, mode: str) -> float:
    convolution = partial(_convolved, kernel=_kernel(dtype, 3), mode=mode)
    return equivariance(convolution, _image(dtype), translations(HEIGHT, WIDTH)).largest


def _inside(dtype: torch.dtype, *, margin: int) -> float:
    """Shifts by at most 2 of an image with an empty margin; the kernel reaches one pixel further."""
    image = pad(_image(dtype), (margin,) * 4)
    group = bounded_translations(*image.shape[-2:], reach=2)
    return equivariance(partial(_convolved, kernel=_kernel(dtype, 3), mode="constant"), image, group).largest


def _strided(dtype: torch.dtype, *, multiples: bool) -> float:
    """Input shifts by multiples of the stride move the output by the quotient; the others by no shift at all."""
    image = _image(dtype, TALL, BROAD)
    convolution = partial(_convolved, kernel=_kernel(dtype, 3), stride=STRIDE)
    outputs = translations(TALL // STRIDE, BROAD // STRIDE)
    inputs = translations(TALL, BROAD, step=STRIDE)
    if multiples:
        pairs = zip(inputs, outputs, strict=True)
        group = [Action(name=move.name, operands=(move,), output=moved) for move, moved in pairs]
        return equivariance(convolution, image, group).largest
    odd = [move for move in translations(TALL, BROAD) if move not in inputs]
    tried = [Action(name=move.name, operands=(move,), output=moved) for move in odd for moved in outputs]
    return min(equivariance(convolution, image, [action]).largest for action in tried)


def _square_symmetric(dtype: torch.dtype, *, averaged: bool) -> float:
    kernel = _kernel(dtype, 3)
    if averaged:
        kernel = torch.stack([element(kernel) for element in dihedral(3)]).mean(dim=0)
    convolution = partial(_convolved, kernel=kernel, mode="constant")
    return equivariance(convolution, _image(dtype, SIDE, SIDE), dihedral(SIDE)).largest


def _weights(dtype: torch.dtype) -> Weights:
    return drawn_weights((CHANNELS,) * 3, key=HEAD, value=OUT, seed=42, dtype=dtype)


def _on_pixels(image: Tensor) -> Tensor:
    return spatial_attention(image, image, image, operator=partial(attention, weights=_weights(image.dtype)))


def _f5(dtype: torch.dtype) -> float:
    return equivariance(_on_pixels, _image(dtype, SIDE, SIDE), dihedral(SIDE)).largest


def _f5_control(dtype: torch.dtype) -> float:
    """Rotation by 30 degrees mixes neighbouring pixels; attention does not commute with that."""
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    turn = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]], dtype=dtype)

    def rotated(image: Tensor) -> Tensor:
        return grid_sample(image, affine_grid(turn, list(image.shape), align_corners=False), align_corners=False)

    image = _image(dtype, SIDE, SIDE)
    return apart(_on_pixels(rotated(image)), rotated(_on_pixels(image)))


def _pooled_convolution(image: Tensor) -> Tensor:
    """A circular convolution, rectified and averaged over the image: invariant to translations, not to scrambling."""
    return _convolved(image, _kernel(image.dtype, 3)).relu().mean(dim=(-2, -1))


def _scrambled(dtype: torch.dtype, *, convolved: bool) -> float:
    queries, w = drawn(1, 2, HEAD, seed=43, dtype=dtype), _weights(dtype)

    def pooled_attention(image: Tensor) -> Tensor:
        return learned_query(unfold(image), queries, w)

    group = permutations(HEIGHT, WIDTH, axes=GRID, seed=1)
    return invariance(_pooled_convolution if convolved else pooled_attention, _image(dtype), group).largest


_SAID = f"{SLIDES}, convolution and symmetry"

CONVOLUTION = (
    Statement("F1", "a 1 x 1 convolution is equivariant to every permutation of the pixels", _f1,
              "outputs in another order", _f1_control, _SAID),
    Statement("F2", "a wider convolution is neither equivariant nor invariant, unless its kernel is a point", _f2,
              "3 x 3 kernel", _f2_control, _SAID),
    Statement("F3a", "with circular padding a convolution is equivariant to cyclic translations",
              partial(_wrapped, mode="circular"), "zero padding", partial(_wrapped, mode="constant"), _SAID),
    Statement("F3b", "with zero padding it is equivariant to shifts that keep the image off the border",
              partial(_inside, margin=3), "image up to the border", partial(_inside, margin=0), _SAID),
    Statement("F4", "with stride s a convolution is equivariant to translations by multiples of s",
              partial(_strided, multiples=True),
              "other translations, against any of the output", partial(_strided, multiples=False), _SAID),
    Statement("F5a", "attention on pixels is equivariant to quarter turns, flips and transposes", _f5,
              "rotation by 30 degrees, interpolated", _f5_control, _SAID),
    Statement("F5b", "a convolution is equivariant to these if its kernel has the same symmetries",
              partial(_square_symmetric, averaged=True),
              "any kernel", partial(_square_symmetric, averaged=False), _SAID),
    Statement("F6", "attention with a learned query cannot tell an image from its scrambled pixels",
              partial(_scrambled, convolved=False),
              "convolution, averaged over the image", partial(_scrambled, convolved=True), _SAID),
)  # fmt: skip
