"""What an operator requires of the layer it is swapped into, for named operators and for any function of q, k and v."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.named import OPERATORS, PROPERTIES, operator_from_dict

CHILD_NAME = "clearhead_operator"
"""The name under which a layer holds an operator with parameters."""


@runtime_checkable
class Buildable(Protocol):
    """An operator with parameters: it is not called itself, but builds a module for every layer."""

    def build(self) -> nn.Module:
        """Return a new module that is called as operators are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The properties that a `NamedOperator` declares; the defaults hold for a plain function, which declares none.

    has_key_rows: see `NamedOperator`
    plain: True for such a function; it is never called with a query that has no visible key
    """

    name: str
    square: bool = False
    needs_past_queries: bool = False
    uses_queries: bool = True
    takes: frozenset[str] = frozenset()
    has_key_rows: bool = False
    plain: bool = False


def resolve_operator(operator: str | Callable[..., Tensor] | Buildable) -> Callable[..., Any] | Buildable:
    """Return the operator, or the one of `OPERATORS` with this name, with its default settings.

    Raise ValueError for an unknown name, and for anything that is not called with (q, k, v, *, mask, scale).
    """
    if isinstance(operator, str):
        if operator not in OPERATORS:
            raise InputError(f"there is no operator {operator!r}; choose from {', '.join(OPERATORS.names())}")
        return operator_from_dict({"operator": operator})  # type: ignore[no-any-return]
    expected = "expected an operator, its name, or a function (q, k, v, *, mask, scale)"
    if isinstance(operator, type) or not (callable(operator) or isinstance(operator, Buildable)):
        raise InputError(f"{expected}; got {operator!r}")
    if not isinstance(operator, Buildable) and not _accepts_operands(operator):
        raise InputError(
            f"{expected}; {requirements_of(operator).name} takes other arguments: wrap it in such a function"
        )
    return operator


def _accepts_operands(operator: Any) -> bool:
    """Return True if it can be called with (q, k, v, mask=, scale=); built-in functions have no signature to check."""
    try:
        signature = inspect.signature(operator.forward if isinstance(operator, nn.Module) else operator)
    except ValueError:
        return True
    try:
        signature.bind(None, None, None, mask=None, scale=None)
    except TypeError:
        return False
    return True


def requirements_of(operator: Any) -> Requirements:
    """Return the properties that the operator declares, or those of a plain function."""
    if not all(hasattr(operator, name) for name in PROPERTIES):
        name = getattr(operator, "__name__", type(operator).__name__)
        return Requirements(name=name, plain=True)
    has_key_rows = bool(getattr(operator, "has_key_rows", False))
    properties = {name: getattr(operator, name) for name in PROPERTIES}
    return Requirements(name=operator.name, has_key_rows=has_key_rows, **properties)


def instantiate(operator: Any, layer: nn.Module) -> Callable[..., Tensor]:
    """Return the function to call in one layer: the operator, or a module it builds, in the layer's dtype."""
    if not hasattr(operator, "build"):
        return operator  # type: ignore[no-any-return]
    try:
        module: nn.Module = operator.build()
    except (RuntimeError, MemoryError) as error:  # sizes from a file may exceed the memory
        raise InputError(f"{operator!r} cannot be built: {str(error).partition(chr(10))[0]}") from error
    parameter = next((p for p in layer.parameters() if p.is_floating_point()), None)
    if parameter is not None:
        module.to(device=parameter.device, dtype=parameter.dtype)
    return module.train(layer.training)
