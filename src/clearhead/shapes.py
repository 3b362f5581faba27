"""The letters of all shapes in Clearhead, and the checks of operands.

======  =========================================
letter  axis
======  =========================================
b       batch: one input, or one window of an input
h       head
n       query token
m       key token (also the value's)
d       width of a query and of a key
e       width of a value and of an output
======  =========================================

Shapes are jaxtyping annotations. They are documentation at run time, and jaxtyping's import hook checks them in one of
the two test sessions. Without jaxtyping installed they fall back to plain tensors.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.private_names import functorch_active

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, annotation: tuple[Any, str]) -> Any:
                return annotation[0]

        Bool = Float = Int = _Unchecked

__all__ = [
    "Bool",
    "Float",
    "Int",
    "ShapeError",
    "all_finite",
    "broadcasts",
    "check_attention_operands",
    "check_finite",
    "format_shapes",
]


class ShapeError(InputError):
    """Operands whose shapes do not fit. The message shows what was expected and the shape of each operand."""


def check_attention_operands(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
) -> None:
    """Raise `ShapeError` or `InputError` unless q (..., n, d), k (..., m, d), v (..., m, e) fit.

    A mask is boolean, True where a key is visible, and broadcasts to (..., n, m); so does a bias, which is floating.
    """
    # A call that fits runs little code: after a long call nothing of it is in the processor's cache.
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if min(len(q_shape), len(k_shape), len(v_shape)) < 2:
        got = format_shapes(q=q, k=k, v=v, mask=mask, bias=bias)
        raise ShapeError(f"expected q (..., n, d), k (..., m, d), v (..., m, e); got {got}")
    if (
        q_shape[-1] == 0
        or q_shape[-1] != k_shape[-1]
        or k_shape[-2] != v_shape[-2]
        or not q_shape[:-2] == k_shape[:-2] == v_shape[:-2]
    ):
        raise ShapeError(
            "expected q (..., n, d), k (..., m, d), v (..., m, e) of one leading shape, one d > 0, one m; got "
            f"{format_shapes(q=q, k=k, v=v, mask=mask, bias=bias)}"
        )
    dtype, device = q.dtype, q.device
    if not dtype.is_floating_point or not dtype == k.dtype == v.dtype:
        raise InputError(f"expected q, k and v of one floating dtype; got {_each('dtype', q=q, k=k, v=v)}")
    if not device == k.device == v.device:
        raise InputError(f"expected every operand on one device; got {_each('device', q=q, k=k, v=v)}")
    for name, extra in (("mask", mask), ("bias", bias)):
        if extra is None:
            continue
        scores = (*q_shape[:-1], k_shape[-2])
        if not broadcasts(tuple(extra.shape), scores):
            got = format_shapes(q=q, k=k, v=v, mask=mask, bias=bias)
            raise ShapeError(f"expected {name} to broadcast to (..., n, m) = {scores}; got {got}")
        if name == "mask" and extra.dtype is not torch.bool:
            raise InputError(f"expected a boolean mask, True where a key is visible; got a mask of {extra.dtype}")
        if name == "bias" and not extra.is_floating_point():
            raise InputError(f"expected a floating additive bias; got a bias of {extra.dtype}")
        if extra.device != device:
            raise InputError(f"expected every operand on one device; got {_each('device', q=q, **{name: extra})}")


def format_shapes(**operands: Tensor | None) -> str:
    """Return the names and shapes of the operands that are not None, for an error message."""
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in operands.items() if x is not None)


def _each(attribute: str, **operands: Tensor) -> str:
    return ", ".join(f"{name} {getattr(x, attribute)}" for name, x in operands.items())


def check_finite(name: str, x: Tensor) -> None:
    """Raise `InputError` if x contains NaN or infinity; do nothing inside torch.compile or torch.func."""
    if torch.compiler.is_compiling() or functorch_active():
        return
    if not all_finite(x):
        raise InputError(f"expected finite {name}; got NaN or infinity: look for a token that overflowed")


def all_finite(x: Tensor) -> bool:
    """Return whether x contains neither NaN nor infinity.

    Both make the sum NaN or infinite, and a sum is several times as fast as a test of each entry. The sum of large
    entries may overflow; only then each is tested.
    """
    x = x.detach()
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return True if a tensor of this shape can be expanded to the target shape."""
    if len(shape) > len(target):
        return False
    return all(s in (1, t) for s, t in zip(reversed(shape), reversed(target), strict=False))
