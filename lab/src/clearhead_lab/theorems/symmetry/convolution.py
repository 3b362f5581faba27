"""Theorems on the symmetries of convolutions and of attention on images (F)."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from clearhead.operators.spatial import spatial_attention, unfold
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
from clearhead_lab.theorems.symmetry.forms import (
    SLIDES,
    Weights,
    attention,
    learned_query_attention,
    random_weights,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

CHANNELS, OUT, HEAD = 3, 5, 2
HEIGHT, WIDTH, SIDE = 7, 5, 7
STRIDE, STRIDED_HEIGHT, STRIDED_WIDTH = 2, 6, 10


def _image(dtype: torch.dtype, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return normal_tensor(1, CHANNELS, height, width, seed=40, dtype=dtype)


def _kernel(dtype: torch.dtype, size: int) -> Tensor:
    return normal_tensor(OUT, CHANNELS, size, size, seed=41, dtype=dtype)


def _convolve(image: Tensor, kernel: Tensor, *, mode: str = "circular", stride: int = 1) -> Tensor:
    """Return the convolution, of the image's size or 1/stride of it."""
    border = (kernel.shape[-1] // 2,) * 4
    return conv2d(pad(image, border, mode=mode), kernel, stride=stride)


def _pixel_permutations(kernel: Tensor) -> list[SymmetryReport]:
    """Measure equivariance to all permutations of 2 x 2 pixels and to random ones of 7 x 5."""
    operator = partial(_convolve, kernel=kernel, mode="constant")
    return [
        equivariance(operator, _image(kernel.dtype, *size), permutations(*size, axes=GRID))
        for size in ((2, 2), (HEIGHT, WIDTH))
    ]


def _point_convolution(dtype: torch.dtype) -> float:
    return max(report.largest for report in _pixel_permutations(_kernel(dtype, 1)))


def _point_convolution_control(dtype: torch.dtype) -> float:
    return min(report.control for report in _pixel_permutations(_kernel(dtype, 1)))


def _kernel_with_one_point(dtype: torch.dtype) -> float:
    centre = torch.zeros(3, 3, dtype=dtype)
    centre[1, 1] = 1
    return max(report.largest for report in _pixel_permutations(_kernel(dtype, 3) * centre))


def _wide_kernel(dtype: torch.dtype) -> float:
    """Return the smallest of the errors: neither equivariance nor invariance may hold."""
    kernel = _kernel(dtype, 3)
    group = permutations(HEIGHT, WIDTH, axes=GRID)
    invariance_error = invariance(partial(_convolve, kernel=kernel), _image(dtype), group).largest
    return min(invariance_error, *(report.largest for report in _pixel_permutations(kernel)))


def _cyclic_translations(dtype: torch.dtype, *, mode: str) -> float:
    operator = partial(_convolve, kernel=_kernel(dtype, 3), mode=mode)
    return equivariance(operator, _image(dtype), translations(HEIGHT, WIDTH)).largest


def _bounded_translations(dtype: torch.dtype, *, margin: int) -> float:
    """Shift an image with an empty margin by at most 2; the kernel extends one pixel further."""
    image = pad(_image(dtype), (margin,) * 4)
    group = bounded_translations(*image.shape[-2:], reach=2)
    return equivariance(partial(_convolve, kernel=_kernel(dtype, 3), mode="constant"), image, group).largest


def _strided(dtype: torch.dtype, *, multiples: bool) -> float:
    """Return the largest error for shifts by multiples of the stride, which shift the output by the quotient.

    For all other shifts, return the smallest error against any shift of the output.
    """
    image = _image(dtype, STRIDED_HEIGHT, STRIDED_WIDTH)
    operator = partial(_convolve, kernel=_kernel(dtype, 3), stride=STRIDE)
    outputs = translations(STRIDED_HEIGHT // STRIDE, STRIDED_WIDTH // STRIDE)
    inputs = translations(STRIDED_HEIGHT, STRIDED_WIDTH, step=STRIDE)
    if multiples:
        pairs = zip(inputs, outputs, strict=True)
        group = [Action(name=shift.name, operands=(shift,), output=output) for shift, output in pairs]
        return equivariance(operator, image, group).largest
    others = [shift for shift in translations(STRIDED_HEIGHT, STRIDED_WIDTH) if shift not in inputs]
    actions = [Action(name=shift.name, operands=(shift,), output=output) for shift in others for output in outputs]
    return min(equivariance(operator, image, [action]).largest for action in actions)


def _square_symmetries(dtype: torch.dtype, *, symmetric_kernel: bool) -> float:
    kernel = _kernel(dtype, 3)
    if symmetric_kernel:
        kernel = torch.stack([element(kernel) for element in dihedral(3)]).mean(dim=0)
    operator = partial(_convolve, kernel=kernel, mode="constant")
    return equivariance(operator, _image(dtype, SIDE, SIDE), dihedral(SIDE)).largest


def _weights(dtype: torch.dtype) -> Weights:
    return random_weights((CHANNELS,) * 3, key_width=HEAD, value_width=OUT, seed=42, dtype=dtype)


def _pixel_attention(image: Tensor) -> Tensor:
    return spatial_attention(image, image, image, operator=partial(attention, weights=_weights(image.dtype)))


def _pixel_attention_symmetries(dtype: torch.dtype) -> float:
    return equivariance(_pixel_attention, _image(dtype, SIDE, SIDE), dihedral(SIDE)).largest


def _rotation_by_30_degrees(dtype: torch.dtype) -> float:
    """Return the error of a rotation that mixes neighbouring pixels, with which attention does not commute."""
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    rotation = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]], dtype=dtype)

    def rotate(image: Tensor) -> Tensor:
        return grid_sample(image, affine_grid(rotation, list(image.shape), align_corners=False), align_corners=False)

    image = _image(dtype, SIDE, SIDE)
    return relative_residual(_pixel_attention(rotate(image)), rotate(_pixel_attention(image)))


def _pooled_convolution(image: Tensor) -> Tensor:
    """Return the mean over pixels of a rectified circular convolution: invariant to translations only."""
    return _convolve(image, _kernel(image.dtype, 3)).relu().mean(dim=(-2, -1))


def _scrambled_pixels(dtype: torch.dtype, *, convolution: bool) -> float:
    queries, w = normal_tensor(1, 2, HEAD, seed=43, dtype=dtype), _weights(dtype)

    def pooled_attention(image: Tensor) -> Tensor:
        return learned_query_attention(unfold(image), queries, w)

    group = permutations(HEIGHT, WIDTH, axes=GRID, seed=1)
    return invariance(_pooled_convolution if convolution else pooled_attention, _image(dtype), group).largest


_SECTION = f"{SLIDES}, convolution and symmetry"

CONVOLUTION_THEOREMS = (
    Theorem("F1", "a 1 x 1 convolution is equivariant to every permutation of the pixels", _point_convolution,
            "outputs in another order", _point_convolution_control, _SECTION),
    Theorem("F2", "a 3 x 3 convolution is neither equivariant nor invariant to them, unless its kernel is one point",
            _kernel_with_one_point, "a full 3 x 3 kernel", _wide_kernel, _SECTION),
    Theorem("F3a", "with circular padding, a convolution is equivariant to cyclic translations",
            partial(_cyclic_translations, mode="circular"),
            "zero padding", partial(_cyclic_translations, mode="constant"), _SECTION),
    Theorem("F3b", "with zero padding, a convolution is equivariant to shifts that stay away from the border",
            partial(_bounded_translations, margin=3),
            "image without an empty margin", partial(_bounded_translations, margin=0), _SECTION),
    Theorem("F4", "with stride s, a convolution is equivariant to translations by multiples of s",
            partial(_strided, multiples=True),
            "other translations, compared with every shift of the output", partial(_strided, multiples=False),
            _SECTION),
    Theorem("F5a", "attention on pixels is equivariant to rotations by 90 degrees, flips and transposition",
            _pixel_attention_symmetries, "rotation by 30 degrees, interpolated", _rotation_by_30_degrees, _SECTION),
    Theorem("F5b", "a convolution is equivariant to these if its kernel has the same symmetries",
            partial(_square_symmetries, symmetric_kernel=True),
            "an arbitrary kernel", partial(_square_symmetries, symmetric_kernel=False), _SECTION),
    Theorem("F6", "attention with a learned query gives an image and its scrambled pixels the same output",
            partial(_scrambled_pixels, convolution=False),
            "convolution, averaged over the image", partial(_scrambled_pixels, convolution=True), _SECTION),
)  # fmt: skip
