"""Record what a model's attention layers see, and leave no trace in the model."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.heads import Heads
from clearhead.record import LayerRecord
from clearhead.sockets import SOCKETS, AttentionNotSeenError, AttentionSpec, Tap, open_sockets
from clearhead.sockets.expected import expected_modules
from clearhead.sockets.tap import overridden_forward

__all__ = ["Tape", "capture"]


class Tape:
    """What was captured: `heads` of the calls, unless a `keep` takes them, and the `layers` of one forward pass."""

    def __init__(self, keep: Callable[[Heads], None] | None) -> None:
        self.heads: list[Heads] = []
        self.layers: list[LayerRecord] = []
        self.passes = 0
        self.unseen: tuple[str, ...] = ()
        self._keep = self.heads.append if keep is None else keep
        self._place = 0
        self._inputs = 0

    def begin(self, arguments: Sequence[Any]) -> None:
        """A forward pass starts."""
        self.passes += 1
        self._place = 0
        self._inputs = next((x.shape[0] for x in arguments if isinstance(x, Tensor) and x.ndim), 0)

    def receive(self, heads: Heads) -> None:
        """Take one call, number it, and tell windows of an input from inputs."""
        b = heads.q.shape[0]
        folded = 0 < self._inputs < b and b % self._inputs == 0 and heads.socket != "torch.nn.MultiheadAttention"
        heads = dataclasses.replace(_detached(heads), layer=self._place, windows=b // self._inputs if folded else 1)
        if self._place == len(self.layers):
            count = heads.q.shape[1]
            self.layers.append(LayerRecord(layer=self._place, name=heads.name, heads=count, socket=heads.socket))
        self._place += 1
        self._keep(heads)


def _detached(heads: Heads) -> Heads:
    return dataclasses.replace(
        heads,
        q=heads.q.detach(),
        k=heads.k.detach(),
        v=heads.v.detach(),
        out=heads.out.detach(),
        bias=None if heads.bias is None else heads.bias.detach(),
        sinks=None if heads.sinks is None else heads.sinks.detach(),
    )


@contextmanager
def capture(
    model: nn.Module,
    *,
    describe: Sequence[AttentionSpec] = (),
    keep: Callable[[Heads], None] | None = None,
    allow_unseen: bool = False,
) -> Iterator[Tape]:
    """Record `Heads` of every attention call while the model runs inside the block.

    The model's outputs keep every bit, and afterwards the model, torch and transformers are as they were, also when
    the model raises. `keep` receives each call instead of the tape's list, so that memory need not grow. On leaving,
    `AttentionNotSeenError` is raised if the model ran and no attention was seen, or if a module that looks like
    attention ran unseen; `allow_unseen` turns the latter into `tape.unseen`.
    """
    refuse_compiled(model)
    tape = Tape(keep)
    tap = Tap(model, tape.receive)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tape.begin([*args, *kwargs.values()])
        return original(*args, **kwargs)

    with (
        open_sockets(tap, describe),
        expected_modules(model) as expected,
        overridden_forward(model, forward),
    ):
        yield tape
    tape.unseen = expected.unseen(layer.name for layer in tape.layers)
    if tape.passes and not tape.layers:
        raise AttentionNotSeenError(_nothing_seen(model, tape.unseen))
    if tape.unseen and not allow_unseen:
        raise AttentionNotSeenError(_partly_seen(tape.unseen))


def refuse_compiled(model: nn.Module) -> None:
    """A compiled or scripted model calls no Python that could be watched."""
    if isinstance(model, torch.jit.ScriptModule):
        raise AttentionNotSeenError("a scripted model cannot be watched: pass the model it was made from")
    if hasattr(model, "_orig_mod"):
        raise AttentionNotSeenError("a compiled model cannot be watched: pass model._orig_mod")


def _nothing_seen(model: nn.Module, unseen: Sequence[str]) -> str:
    if not unseen:
        return f"{type(model).__name__} has no attention that could be seen; tried {', '.join(SOCKETS)}"
    tried = ", ".join(SOCKETS)
    return f"the attention of {_listed(unseen)} was not seen; tried {tried}; say where q, k, v are in a description"


def _partly_seen(unseen: Sequence[str]) -> str:
    return (
        f"{len(unseen)} attention modules ran unseen, {_listed(unseen)}; tried {', '.join(SOCKETS)}; "
        "describe them, or allow unseen modules if they are not attention over tokens"
    )


def _listed(names: Sequence[str], most: int = 2) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
