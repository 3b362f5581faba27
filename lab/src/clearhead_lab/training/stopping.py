"""Stopping a run at the end of a step when a signal arrives."""

import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["StopRequest", "stop_at_signals"]

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopRequest:
    """The signal that asked for a stop, if one has arrived, and the handlers that were there before."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.handlers: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Return True if a signal has arrived."""
        return self.number is not None

    def restore(self) -> None:
        """Put the handlers back."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}

    def deliver(self) -> None:
        """Put the handlers back and send the signal again; Ctrl-C if it arrived in another process."""
        self.restore()
        signal.raise_signal(self.number or signal.SIGINT)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:  # the second one does not wait for the step
            self.deliver()
        self.number = number


@contextmanager
def stop_at_signals() -> Iterator[StopRequest]:
    """Yield a request that the first SIGINT, SIGTERM or SIGHUP sets. Ignored signals stay ignored.

    Outside the main thread, where Python sets no handlers, it is never set.
    """
    request = StopRequest()
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN or handler is None:
            continue
        with contextlib.suppress(ValueError):
            signal.signal(number, request._handle)
            request.handlers[number] = handler
    try:
        yield request
    finally:
        request.restore()
