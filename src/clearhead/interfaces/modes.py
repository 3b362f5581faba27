"""Interception of torch functions in one thread, for as long as a forward runs.

torch keeps a TorchFunctionMode to its thread, so torch itself stays untouched. While a mode is active, torch's encoder
layers leave their fused path; `without_modes` therefore suspends ours around them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.overrides import TorchFunctionMode

from clearhead.private_names import current_function_mode


class CallMode(TorchFunctionMode):
    """Base class of Clearhead's modes, by which `without_modes` recognises them."""


class _Suspended(threading.local):
    """The modes that `without_modes` suspends in this thread, outermost first."""

    def __init__(self) -> None:
        self.modes: list[CallMode] = []


_SUSPENDED = _Suspended()


@contextmanager
def without_modes() -> Iterator[None]:
    """Suspend Clearhead's modes in this thread, as if no handler was attached.

    Modes of others stay active. One of theirs above ours turns the fused path off anyway, so ours below it stays too.
    """
    popped: list[CallMode] = []
    while isinstance(mode := current_function_mode(), CallMode):
        _leave(mode)
        popped.insert(0, mode)
    before = _SUSPENDED.modes
    _SUSPENDED.modes = [*before, *popped]
    try:
        yield
    finally:
        _SUSPENDED.modes = before
        for mode in popped:
            _enter(mode)


@contextmanager
def with_suspended_modes() -> Iterator[None]:
    """Activate the suspended modes again inside `without_modes`."""
    modes, _SUSPENDED.modes = _SUSPENDED.modes, []
    for mode in modes:
        _enter(mode)
    try:
        yield
    finally:
        for mode in reversed(modes):
            _leave(mode)
        _SUSPENDED.modes = modes


def _enter(mode: CallMode) -> None:
    mode.__enter__()  # type: ignore[no-untyped-call]


def _leave(mode: CallMode) -> None:
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
