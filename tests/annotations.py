"""What checks annotations in the typed session: beartype, asked once for each function.

jaxtyping's import hook decorates a function whenever its definition is executed, so one that stands within another is
decorated anew in each call of that, and beartype writes a program each time. It decorates stand-ins: functions of the
same arguments and annotations without a body. Where two of them are equal, so is what beartype makes of them.
"""

from collections.abc import Callable
from typing import Any

from beartype import beartype

_MADE: dict[tuple[Any, ...], Callable[..., Any]] = {}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked, as `beartype` gives it."""
    code = function.__code__
    if function.__defaults__ or function.__kwdefaults__ or function.__closure__ or code.co_names:
        return beartype(
            function
        )  # not told apart by what follows: defaults are checked too, and a body may do anything
    key = (function.__module__, function.__qualname__, code, *function.__annotations__.items())
    if key not in _MADE:
        _MADE[key] = beartype(function)
    return _MADE[key]
