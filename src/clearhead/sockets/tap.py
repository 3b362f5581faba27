"""What every socket shares: the model being watched, who receives its calls, and how a layer's tensors are laid out."""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.heads import Heads
from clearhead.sockets.blocks import BlockCall
from clearhead.sockets.linear_maps import MapTrace
from clearhead.sockets.stream_watch import StreamWatch

__all__ = [
    "AttentionNotSeenError",
    "Receiver",
    "Tap",
    "causal_mask",
    "named_arguments",
    "overridden_forward",
    "split_mask",
    "windows_of",
]

Receiver = Callable[[Heads], Tensor | None]
"""Takes one call; returns the attention output that the model shall go on with, or None to leave the model's own."""


HIDING = 1000.0
"""So far below others, a score leaves no weight in any precision."""


class AttentionNotSeenError(InputError):
    """A model whose attention, or a part of it, could not be seen. The message names what was tried and what to do."""


class Tap:
    """One model with its sockets open.

    Sockets call `emit` for each attention call. A call inside a call that an outer socket already handles (Hugging
    Face's dispatcher ends in torch's fused kernel) is left alone: `inside` tells, and `claimed` holds the modules that
    a description speaks for. `passes` counts forward passes, `running` tells whether one is under way, `inputs` how
    many inputs it has; `unseen` holds modules that ran without showing their attention. `receiving` is the thread in
    which a call is being received. `trace_maps` asks for what queries, keys and values were made from. `stream` watches
    for the tokens around each call, `call` is then what is known of the one being received, and `ended` is told when a
    pass is over.
    """

    def __init__(
        self,
        model: nn.Module,
        receive: Receiver,
        *,
        replaces: bool = False,
        trace_maps: bool = False,
        stream: StreamWatch | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.replaces = replaces
        self.names = {id(module): name or "(model)" for name, module in model.named_modules()}
        self.claimed: set[int] = set()
        self.calls = 0
        self.passes = 0
        self.inputs = 0
        self.inside = False
        self.running = False
        self.unseen: dict[str, str] = {}
        self.receiving: int | None = None
        self.stream = stream
        self.call: BlockCall | None = None
        self._receive = receive
        self._ended = ended
        self._maps = MapTrace() if trace_maps else None

    def emit(self, heads: Heads, made: Tensor) -> Tensor | None:
        """Hand one call to the receiver. made: the model's own tensor that the attention went into"""
        self.calls += 1
        with nullcontext() if self.stream is None else self.stream.paused():
            if self._maps is not None:
                heads = self._maps.with_origins(heads)
            call = None if self.stream is None else self.stream.called(heads, made)
            with self.received(call):
                replaced = self._receive(heads)
        if self.stream is not None and call is not None and replaced is not None:
            self.stream.replaced(call, replaced)
        return replaced

    @contextmanager
    def received(self, call: BlockCall | None = None) -> Iterator[None]:
        """While somebody looks at calls of the model, operators that they use are no calls of it."""
        self.receiving, self.call = threading.get_ident(), call
        try:
            with self.busy():
                yield
        finally:
            self.receiving, self.call = None, None

    @contextmanager
    def watched_passes(self) -> Iterator[None]:
        """Know while the model's own forward runs, and with how many inputs: the length of its first tensor."""

        def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            self.inputs = next((x.shape[0] for x in given if isinstance(x, Tensor) and x.ndim), 0)
            self.passes += 1
            self.running = True
            try:
                with nullcontext() if self.stream is None else self.stream.watched(self._pass_over):
                    return original(*args, **kwargs)
            finally:
                self.running = False
                if self._maps is not None:
                    self._maps.forget()

        with ExitStack() as stack:
            if self._maps is not None:
                stack.enter_context(self._maps.watched(lambda: self.running))
            stack.enter_context(overridden_forward(self.model, forward))
            yield

    def _pass_over(self) -> None:
        with self.received():
            if self._ended is not None:
                self._ended()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While an outer socket runs the model's own attention, inner sockets stay silent."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before


def windows_of(module: nn.Module, batched: Tensor, tap: Tap) -> int:
    """How many entries of the batch are windows of one input, for modules that have a window size (Swin's kind)."""
    b = batched.shape[0]
    windowed = any(hasattr(part, "window_size") for part in module.modules())
    return b // tap.inputs if windowed and 0 < tap.inputs < b and b % tap.inputs == 0 else 1


@contextmanager
def overridden_forward(module: nn.Module, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Run `wrapper(original, *args, **kwargs)` in place of one module's forward; the module is as it was afterwards.

    The override lies on the instance, not in a hook: torch's encoder layers leave their fused path when they find
    hooks, and with it the exact bits of their output.
    """
    own = module.__dict__.get("forward")
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def named_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """A call's arguments by name, those gathered in **kwargs among them; defaults left out."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments


def causal_mask(n: int, m: int, device: torch.device) -> Tensor:
    """True on and below the diagonal that starts at the first query and the first key, as torch's kernel has it."""
    return torch.ones(1, 1, n, m, dtype=torch.bool, device=device).tril()


def split_mask(added: object) -> tuple[Tensor | None, Tensor | None]:
    """A model's attention mask as (mask, bias): what hides keys apart from what only shifts scores.

    A boolean mask is True where a query may look. A floating one is added to the scores: an entry hides its key if it
    is half of the dtype's most negative number or less, or `HIDING` below the largest of its row (models write -10000
    and -1e9 too); the rest is a bias unless it is zero throughout.
    """
    if added is None:
        return None, None
    if not isinstance(added, Tensor):
        raise AttentionNotSeenError(
            f"a mask of type {type(added).__name__} cannot be read; choose sdpa or eager attention"
        )
    if added.dtype is torch.bool:
        return added, None
    hidden = added <= torch.finfo(added.dtype).min / 2
    if added.shape[-1] > 1:
        hidden |= added <= added.amax(dim=-1, keepdim=True) - HIDING
    rest = added.masked_fill(hidden, 0)
    mask = ~hidden if bool(hidden.any()) else None
    return mask, rest if bool(rest.any()) else None
