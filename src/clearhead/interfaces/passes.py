"""Forward passes of one model in one thread: how many there were, and whether one is running.

For as long as a forward runs, modes intercept torch functions. torch keeps a TorchFunctionMode to its thread, so torch
itself stays untouched. While a mode is active, torch's encoder layers leave their fused path; `without_modes` therefore
suspends ours around them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
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


class _Open(threading.local):
    """The passes that are being counted in this thread."""

    def __init__(self) -> None:
        self.passes: list[Passes] = []


_OPEN = _Open()


class Passes:
    """A wrapper of a model's forward that counts its passes in the thread that entered `counted`.

    Not the thread's number, which the system gives to another thread after its end, but storage of the thread's own
    says which thread that is.

    count: number of passes so far
    running: whether one is running
    inputs: number of inputs of the last one, the length of its first tensor
    paths: paths of the model's modules by identity
    around, pauses: contexts to enter for each pass, and while a recorded call is being looked at
    """

    permanent = False

    def __init__(self) -> None:
        self.count = 0
        self.running = False
        self.inputs = 0
        self.paths: dict[int, str] = {}
        self.around: list[Callable[[], AbstractContextManager[None]]] = []
        self.pauses: list[Callable[[], AbstractContextManager[None]]] = []
        self._paused = False

    @property
    def listening(self) -> bool:
        """True in the thread that entered `counted`, unless a recorded call is being looked at."""
        return not self._paused and any(passes is self for passes in _OPEN.passes)

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward as one pass. A pass inside a pass is part of it."""
        if not self.listening or self.running:
            return proceed(*args, **kwargs)
        values = [*args, *kwargs.values()]
        self.inputs = next((x.shape[0] for x in values if isinstance(x, Tensor) and x.ndim), 0)
        self.count += 1
        self.running = True
        try:
            with ExitStack() as stack:
                for context in self.around:
                    stack.enter_context(context())
                return proceed(*args, **kwargs)
        finally:
            self.running = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count until the end of the block."""
        _OPEN.passes = [*_OPEN.passes, self]
        try:
            yield
        finally:
            _OPEN.passes = [passes for passes in _OPEN.passes if passes is not self]

    @staticmethod
    @contextmanager
    def paused() -> Iterator[None]:
        """Look at a recorded call: attention computed meanwhile is not a call of any model recorded in this thread.

        Clearhead's modes are suspended: under them every torch function, even `x.shape`, would call Python.
        """
        listening = [passes for passes in _OPEN.passes if not passes._paused]
        with ExitStack() as stack:
            stack.enter_context(without_modes())
            for passes in reversed(listening):
                passes._paused = True
                stack.callback(setattr, passes, "_paused", False)
                for context in passes.pauses:
                    stack.enter_context(context())
            yield
