"""The letters of every shape in Clearhead, and the check at every public door.

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

Shapes are written as jaxtyping annotations. They are documentation when the package runs, and are checked by
jaxtyping's import hook in one of the two test sessions; without jaxtyping installed they fall back to plain tensors.
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

__all__ = ["Bool", "Float", "Int", "ShapeError", "broadcasts", "check_attention_operands", "check_finite"]


class ShapeError(InputError):
    """Operands whose shapes do not belong together. The message shows what was expected and every operand's shape."""


def check_attention_operands(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
) -> None:
    """Raise `ShapeError` or `ValueError` unless q (..., n, d), k (..., m, d), v (..., m, e) can attend to each other.

    A mask is boolean, True where a query may look, and broadcasts to (..., n, m); a bias is floating and broadcasts so.
    """
    operands = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}

    # In functions, for torch.compile with changing sizes does not take the text of a shape.
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
        raise InputError(f"expected a boolean mask, True where a query may look; got {dtypes()}")
    if bias is not None and not bias.is_floating_point():
        raise InputError(f"expected a floating additive bias; got {dtypes()}")
    if len({x.device for x in operands.values() if x is not None}) > 1:
        devices = ", ".join(f"{name} {x.device}" for name, x in operands.items() if x is not None)
        raise InputError(f"expected every operand on one device; got {devices}")


def check_finite(name: str, x: Tensor) -> None:
    """Raise `InputError` if x holds NaN or infinity; do nothing where torch.compile or torch.func hide the numbers."""
    if torch.compiler.is_compiling() or functorch_active():
        return
    if not bool(x.isfinite().all()):
        raise InputError(f"expected finite {name}; got NaN or infinity: look for a token that overflowed")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be expanded to the target without changing the target."""
    if len(shape) > len(target):
        return False
    return all(s in (1, t) for s, t in zip(reversed(shape), reversed(target), strict=False))
