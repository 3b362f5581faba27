"""The checker of annotations in the typed session: beartype, called once for each signature.

jaxtyping's import hook decorates a function whenever its definition runs, so a nested function is decorated in each
call of the outer one, and beartype generates code each time. The hook decorates stubs: functions with the same
arguments and annotations without a body. Equal stubs share beartype's result.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype

_CHECKED: dict[tuple[Any, ...], Callable[..., Any]] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its annotations checked by `beartype`."""
    code = function.__code__
    if function.__defaults__ or function.__kwdefaults__ or function.__closure__ or code.co_names:
        # The key below does not identify such a function: defaults are checked too, and a body may do anything.
        return beartype(function)
    key = (function.__module__, function.__qualname__, code, *function.__annotations__.items())
    if key not in _CHECKED:
        _CHECKED[key] = beartype(function)
    return _CHECKED[key]
