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
]


class ShapeError(InputError):
    """Operands whose shapes do not fit. The message shows what was expected and the shape of each operand."""


def check_attention_operands(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
) -> None:
    """Raise `ShapeError` or `InputError` unless q (..., n, d), k (..., m, d), v (..., m, e) fit.

    A mask is boolean, True where a key is visible, and broadcasts to (..., n, m); so does a bias, which is floating.
    """
    operands = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}

    # Functions, since torch.compile with dynamic sizes does not support the text of a shape.
    def got() -> str:
        return ", ".join(f"{name} {tuple(x.shape)}" for name, x in operands.items() if x is not None)

    def dtypes() -> str:
        return ", ".join(f"{name} {x.dtype}" for name, x in operands.items() if x is not None)

    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ShapeError(f"expected q (..., n, d), k (..., m, d), v (..., m, e); got {got()}")
    if (
        q.shape[-1] == 0
        or q.shape[-1] != k.shape[-1]
        or k.shape[-2] != v.shape[-2]
        or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    ):
        raise ShapeError(
            f"expected q (..., n, d), k (..., m, d), v (..., m, e) of one leading shape, one d > 0, one m; got {got()}"
        )
    scores = (*q.shape[:-1], k.shape[-2])
    for name, extra in (("mask", mask), ("bias", bias)):
        if extra is not None and not broadcasts(tuple(extra.shape), scores):
            raise ShapeError(f"expected {name} to broadcast to (..., n, m) = {scores}; got {got()}")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise InputError(f"expected q, k and v of one floating dtype; got {dtypes()}")
    if mask is not None and mask.dtype is not torch.bool:
        raise InputError(f"expected a boolean mask, True where a key is visible; got {dtypes()}")
    if bias is not None and not bias.is_floating_point():
        raise InputError(f"expected a floating additive bias; got {dtypes()}")
    if len({x.device for x in operands.values() if x is not None}) > 1:
        devices = ", ".join(f"{name} {x.device}" for name, x in operands.items() if x is not None)
        raise InputError(f"expected every operand on one device; got {devices}")


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
