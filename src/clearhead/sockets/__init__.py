"""Where an operator plugs into a model: one file per interface, opened together."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from clearhead.sockets.described import AttentionSpec, described_socket, read_descriptions
from clearhead.sockets.huggingface import INTERFACE_FREE, huggingface_socket
from clearhead.sockets.native import native_socket
from clearhead.sockets.places import watched_places
from clearhead.sockets.sdpa import sdpa_socket
from clearhead.sockets.tap import AttentionNotSeenError, Receiver, Tap
from clearhead.sockets.timm import TIMM_CLASSES
from clearhead.sockets.torch_mha import torch_mha_socket

__all__ = [
    "SOCKETS",
    "AttentionNotSeenError",
    "AttentionSpec",
    "Receiver",
    "Tap",
    "open_sockets",
    "read_descriptions",
    "sockets_are_open",
]

SOCKETS = (
    "the Hugging Face attention interface",
    "timm's attention classes",
    "torch.nn.MultiheadAttention",
    "Clearhead's own modules",
    "torch.nn.functional.scaled_dot_product_attention",
    "the descriptions given",
)
"""What is tried, in words."""


_OPEN = threading.Lock()
_OPENED_BY: list[int] = []


@contextmanager
def _alone() -> Iterator[None]:
    """Sockets replace names of torch and transformers, which a process has once: other threads wait their turn."""
    if sockets_are_open():
        raise AttentionNotSeenError("sockets are open already: leave that capture or swap before opening another")
    with _OPEN:
        _OPENED_BY.append(threading.get_ident())
        try:
            yield
        finally:
            _OPENED_BY.pop()


def sockets_are_open() -> bool:
    """Whether this thread is inside a capture."""
    return threading.get_ident() in _OPENED_BY


@contextmanager
def open_sockets(tap: Tap, describe: Sequence[AttentionSpec] = ()) -> Iterator[None]:
    """Open every socket of the model at once; an outer one silences those inside it, and a description comes first."""
    with ExitStack() as stack:
        stack.enter_context(_alone())
        stack.enter_context(watched_places(tap))
        stack.enter_context(described_socket(tap, (*describe, *INTERFACE_FREE, *TIMM_CLASSES)))
        stack.enter_context(huggingface_socket(tap))
        stack.enter_context(torch_mha_socket(tap))
        stack.enter_context(native_socket(tap))
        stack.enter_context(sdpa_socket(tap))
        stack.enter_context(tap.watched_passes())
        yield
