"""Renderers of records: functions that show a record as plain values, as text or in a notebook.

A renderer registers itself with the record that it renders, so that records do not know what shows them.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from clearhead.errors import InputError

Way = Literal["values", "text", "html"]
"""Plain values as JSON has them, a short text, or an HTML fragment."""
Renderer = TypeVar("Renderer", bound=Callable[[Any], Any])

_RENDERERS: dict[tuple[type, Way], Callable[[Any], Any]] = {}
_IMPORTS: list[Callable[[], object]] = []


def renders(kind: type, way: Way) -> Callable[[Renderer], Renderer]:
    """Register the decorated function as the renderer of one kind of record."""

    def register(function: Renderer) -> Renderer:
        _RENDERERS[kind, way] = function
        return function

    return register


def import_when_needed(import_renderers: Callable[[], object]) -> None:
    """Call a function, which imports renderers, before the first record is shown."""
    _IMPORTS.append(import_renderers)


def render(record: object, way: Way) -> Any:
    """Return the record as its renderer shows it. Raise InputError if it has none."""
    while _IMPORTS:
        _IMPORTS.pop()()
    for kind in type(record).__mro__:
        if (kind, way) in _RENDERERS:
            return _RENDERERS[kind, way](record)
    raise InputError(f"nothing shows a {type(record).__name__} as {way}; import the package that renders it")
