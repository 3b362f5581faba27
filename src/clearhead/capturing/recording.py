"""Record what a model's attention layers see, and leave no trace in the model."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.heads import Heads, LayerRecord, LinearMap
from clearhead.sockets import SOCKETS, AttentionNotSeenError, AttentionSpec, Tap, open_sockets
from clearhead.sockets.expected import expected_modules
from clearhead.sockets.stream_watch import StreamWatch

__all__ = ["Tape", "capture", "recording"]


class Tape:
    """What was captured: `heads` of the calls, unless a `keep` takes them, and the `layers` they belong to.

    A layer is a module, or one of its calls if it is called several times in a forward pass; it keeps its number from
    pass to pass, whichever other layers run. `unseen` names modules that ran without showing their attention.
    """

    def __init__(self, keep: Callable[[Heads], None] | None) -> None:
        self.heads: list[Heads] = []
        self.layers: list[LayerRecord] = []
        self.unseen: tuple[str, ...] = ()
        self.outside: set[str] = set()
        self.passes = 0
        self._keep = self.heads.append if keep is None else keep
        self._places: dict[tuple[str, int], int] = {}
        self._calls: Counter[str] = Counter()

    def receive(self, heads: Heads, tap: Tap) -> Tensor | None:
        """Take one call, number it and keep it; the model goes on with its own output."""
        numbered = self.numbered(heads, tap)
        if numbered is None:
            return None
        if tap.call is None:
            self._keep(numbered)
        else:
            tap.call.heads = numbered
            self.hand_on(tap)
        return None

    def hand_on(self, tap: Tap) -> None:
        """Keep the calls whose stream has become known."""
        if tap.stream is not None:
            for heads in tap.stream.ready():
                self._keep(heads)

    def numbered(self, heads: Heads, tap: Tap) -> Heads | None:
        """The call with its layer's number and name, detached. Calls outside a forward pass of the model, as in a
        second computation for gradients, are noted and None."""
        if not tap.running:
            self.outside.add(heads.name)
            return None
        if tap.passes != self.passes:
            self.passes = tap.passes
            self._calls.clear()
        nth = self._calls[heads.name]
        self._calls[heads.name] += 1
        name = heads.name if nth == 0 else f"{heads.name}, call {nth + 1}"
        count = heads.q.shape[1]
        place = self._places.setdefault((heads.name, nth), len(self.layers))
        if place == len(self.layers):
            self.layers.append(LayerRecord(layer=place, name=name, heads=count, socket=heads.socket))
        if self.layers[place].heads != count:
            raise AttentionNotSeenError(
                f"{name} had {self.layers[place].heads} heads and now has {count}; heads and inputs are not told apart"
            )
        return dataclasses.replace(_detached(heads), layer=place, name=name)


def _detached(heads: Heads) -> Heads:
    """The call, and what its parts were made from, without the graph that autograd keeps."""
    return dataclasses.replace(
        heads,
        q=heads.q.detach(),
        k=heads.k.detach(),
        v=heads.v.detach(),
        out=heads.out.detach(),
        bias=None if heads.bias is None else heads.bias.detach(),
        sinks=None if heads.sinks is None else heads.sinks.detach(),
        queries_from=_detached_map(heads.queries_from),
        keys_from=_detached_map(heads.keys_from),
        values_from=_detached_map(heads.values_from),
    )


def _detached_map(made: LinearMap | None) -> LinearMap | None:
    if made is None:
        return None
    bias = None if made.bias is None else made.bias.detach()
    return LinearMap(x=made.x.detach(), weight=made.weight.detach(), bias=bias)


@contextmanager
def capture(
    model: nn.Module,
    *,
    describe: Sequence[AttentionSpec] = (),
    keep: Callable[[Heads], None] | None = None,
    allow_unseen: bool = False,
    stream: bool = False,
) -> Iterator[Tape]:
    """Record `Heads` of every attention call while the model runs inside the block.

    The model's outputs keep every bit, and afterwards the model, torch and transformers are as they were, also when
    the model raises. One capture or swap is open at a time: other threads wait, and another inside it is refused.
    `keep` receives each call instead of the tape's list, so that memory need not grow. On leaving,
    `AttentionNotSeenError` is raised if the model ran and no attention was seen, or if a module that looks like
    attention ran unseen; `allow_unseen` turns the latter into `tape.unseen`.

    `stream` asks for `Heads.stream`, the tokens that the model carries past each block of self-attention, to the bit
    and whatever the architecture (`sockets.residual` has the rule). It is None for cross-attention, for attention
    beside an MLP or without a path around it, and in threads that the model starts. A call then reaches `keep` when its
    stream is known, up to two calls later or when the pass is over, in the same order; if the model raises, calls that
    wait are let go. Torch's fused encoder adds nothing that could be seen: `between` and `after` are those of the
    second run in which its attention is seen, its own to rounding.
    """
    tape = Tape(keep)
    with recording(model, tape, describe=describe, allow_unseen=allow_unseen, stream=stream):
        yield tape


@contextmanager
def recording(
    model: nn.Module,
    tape: Tape,
    *,
    describe: Sequence[AttentionSpec],
    allow_unseen: bool,
    stream: bool,
    replaces: bool = False,
) -> Iterator[Tap]:
    """Let the tape receive every attention call of the model; on leaving, say what ran unseen."""
    refuse_compiled(model)
    tap = Tap(
        model,
        lambda heads: tape.receive(heads, tap),
        replaces=replaces,
        trace_maps=True,
        stream=StreamWatch() if stream else None,
        ended=lambda: tape.hand_on(tap),
    )
    with expected_modules(model) as expected, open_sockets(tap, describe):
        yield tap
    tape.passes = tap.passes
    expected.ran |= tap.unseen
    tape.unseen = expected.unseen({*(layer.name.split(", call ")[0] for layer in tape.layers), *tape.outside})
    if not tape.layers and (tap.passes or expected.ran or tape.outside):
        raise AttentionNotSeenError(_nothing_seen(model, tape))
    if tape.unseen and not allow_unseen:
        raise AttentionNotSeenError(_partly_seen(tape.unseen))


def refuse_compiled(model: nn.Module) -> None:
    """A compiled or scripted model calls no Python that could be watched."""
    if isinstance(model, torch.jit.ScriptModule):
        raise AttentionNotSeenError("a scripted model cannot be watched: pass the model it was made from")
    if hasattr(model, "_orig_mod"):
        raise AttentionNotSeenError("a compiled model cannot be watched: pass model._orig_mod")


def _nothing_seen(model: nn.Module, tape: Tape) -> str:
    if tape.outside:
        part = sorted(tape.outside)[0]
        return f"attention ran outside {type(model).__name__}.forward, in {part}: capture the part that you call"
    unseen = tape.unseen
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
