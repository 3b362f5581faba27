"""What a place asks of an operator before it is put there, whether it is a drop-in or any function of q, k and v."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.drop_in import DROP_INS

__all__ = ["CHILD", "Builds", "Traits", "operator_called", "placed_form", "traits_of"]

CHILD = "clearhead_operator"
"""Under which name a layer holds an operator that has parameters."""


@runtime_checkable
class Builds(Protocol):
    """An operator that learns: it is not called itself, and makes a module for every place."""

    def build(self) -> nn.Module:
        """A new module, called as operators are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What `DropIn` says of an operator, and what holds for a plain function, which says nothing.

    plain: whether it is such a function; it is never shown a query that may look nowhere
    """

    name: str
    square: bool = False
    needs_past_queries: bool = False
    uses_queries: bool = True
    takes: frozenset[str] = frozenset()
    plain: bool = False


def operator_called(operator: str | Callable[..., Tensor] | Builds) -> Callable[..., Any] | Builds:
    """The operator itself, or the one of `DROP_INS` that a name means, with its own defaults."""
    if isinstance(operator, str):
        if operator not in DROP_INS:
            raise InputError(f"there is no operator {operator!r}; there are {', '.join(DROP_INS)}")
        return DROP_INS[operator]()  # type: ignore[no-any-return]
    expected = "expected an operator, its name, or a function (q, k, v, *, mask, scale)"
    if isinstance(operator, type) or not (callable(operator) or isinstance(operator, Builds)):
        raise InputError(f"{expected}; got {operator!r}")
    if not isinstance(operator, Builds) and not _is_called_so(operator):
        raise InputError(
            f"{expected}; {traits_of(operator).name} takes other arguments: wrap it in one that is called so"
        )
    return operator


def _is_called_so(operator: Any) -> bool:
    """Whether it takes what a place calls it with; built-in functions do not tell."""
    try:
        signature = inspect.signature(operator.forward if isinstance(operator, nn.Module) else operator)
    except ValueError:
        return True
    try:
        signature.bind(None, None, None, mask=None, scale=None)
    except TypeError:
        return False
    return True


def traits_of(operator: Any) -> Traits:
    """What the operator says of itself, or the traits of a plain function."""
    said = ("square", "needs_past_queries", "uses_queries", "takes")
    if not all(hasattr(operator, name) for name in said):
        name = getattr(operator, "__name__", type(operator).__name__)
        return Traits(name=name, plain=True)
    return Traits(name=operator.name, **{name: getattr(operator, name) for name in said})


def placed_form(operator: Any, beside: nn.Module) -> Callable[..., Tensor]:
    """What is called in one layer: the operator, or a module of its own that it builds, where and as the layer is."""
    if not hasattr(operator, "build"):
        return operator  # type: ignore[no-any-return]
    try:
        built: nn.Module = operator.build()
    except (RuntimeError, MemoryError) as error:  # sizes that a file may name, and no memory holds
        raise InputError(f"{operator!r} cannot be made: {str(error).partition(chr(10))[0]}") from error
    like = next((p for p in beside.parameters() if p.is_floating_point()), None)
    if like is not None:
        built.to(device=like.device, dtype=like.dtype)
    return built.train(beside.training)
