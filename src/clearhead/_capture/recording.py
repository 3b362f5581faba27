"""Capture: record q, k, v and the output of a model's attention calls, and leave no trace in the model."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from clearhead._capture.blocks import BlockCall
from clearhead._capture.linear_maps import MapTrace
from clearhead._capture.operations import StreamTrace
from clearhead.heads import Heads, LayerRecord, LinearMap
from clearhead.interfaces import INTERFACES, AttentionNotSeenError, AttentionSpec, Call, Original
from clearhead.interfaces.expected import ExpectedModules
from clearhead.interfaces.layouts import Layout
from clearhead.interfaces.passes import Passes
from clearhead.interfaces.placement import frees_weights, refuse_divided_heads, without_compiling
from clearhead.interfaces.whole_model import attached
from clearhead.private_names import COMPILED_MODEL


class Capture:
    """The recorded attention calls of a model, and the handler that records them.

    heads: the calls, unless a `keep` function takes them
    layers: the layers they belong to; a layer is a module, or one of its calls if it runs several times in a forward
        pass, and keeps its number from pass to pass
    unseen: modules that look like attention and ran without a recorded call
    """

    permanent = False
    replaces = False

    def __init__(
        self, keep: Callable[[Heads], None] | None, *, residual_stream: bool = False, linear_maps: bool = True
    ) -> None:
        self.heads: list[Heads] = []
        self.layers: list[LayerRecord] = []
        self.unseen: tuple[str, ...] = ()
        self.outside: set[str] = set()
        self.counter = Passes()
        self._keep = self.heads.append if keep is None else keep
        self._numbers: dict[tuple[str, int], int] = {}
        self._calls: Counter[str] = Counter()
        self._calls_of_pass = 0
        # The trace of the residual stream follows the inputs of the maps.
        self.maps = MapTrace(lambda: self.counter.listening) if linear_maps or residual_stream else None
        self.stream = StreamTrace() if residual_stream else None
        if self.maps is not None:
            self.counter.around.append(self.maps.traced)
        if self.stream is not None:
            self.counter.around.append(partial(self.stream.traced, self._pass_ended))
            self.counter.pauses.append(self.stream.paused)

    def __repr__(self) -> str:
        return f"Capture(layers={len(self.layers)}, passes={self.passes}, heads={len(self.heads)})"

    @property
    def passes(self) -> int:
        """The number of forward passes of the model in the block."""
        return self.counter.count

    def __call__(self, call: Call, original: Original) -> Tensor:
        """Record one call, in the thread of the capture; the model continues with its own output."""
        output = original()
        if not self.counter.listening:
            return output
        with Passes.paused():
            refuse_divided_heads(call.module, self.name_of(call), call.q, call.k, call.v)
            layout = Layout.of(call, self.counter.inputs)
            heads = self.number(self.with_maps(layout.heads(call, output, name=self.name_of(call))))
            if heads is not None:
                block_call = self.block_call(heads, original, projection=call.projection)
                if block_call is None:
                    self._keep(heads)
                else:
                    block_call.heads = heads
                    self._keep_ready()
        return output

    def name_of(self, call: Call) -> str:
        """Return the path of the module that makes the call."""
        return self.counter.paths.get(id(call.module), call.name)

    def with_maps(self, heads: Heads) -> Heads:
        """Return the call with the linear maps of its queries, keys and values, if they are looked for."""
        return heads if self.maps is None else self.maps.with_origins(heads)

    def block_call(self, heads: Heads, original: Original, *, projection: Tensor | None = None) -> BlockCall | None:
        """Return the call as the trace of the residual stream has it, None without one.

        projection: weight of the output projection that the layer's own output has gone through
        """
        assert original.model_output is not None
        if self.stream is None:
            return None
        replaced = original.model_output is original.output
        return self.stream.note_call(heads, original.model_output, projection=None if replaced else projection)

    def _keep_ready(self) -> None:
        if self.stream is not None:
            for heads in self.stream.ready():
                self._keep(heads)

    def _pass_ended(self) -> None:
        with Passes.paused():
            self._keep_ready()

    def number(self, heads: Heads) -> Heads | None:
        """Return the call detached, with its layer's number and name.

        Return None for calls outside a forward pass of the model, as in a second computation for gradients.
        """
        if not self.counter.running:
            self.outside.add(heads.name)
            return None
        if self.counter.count != self._calls_of_pass:
            self._calls_of_pass = self.counter.count
            self._calls.clear()
        nth = self._calls[heads.name]
        self._calls[heads.name] += 1
        name = heads.name if nth == 0 else f"{heads.name}, call {nth + 1}"
        count = heads.q.shape[1]
        number = self._numbers.setdefault((heads.name, nth), len(self.layers))
        if number == len(self.layers):
            self.layers.append(LayerRecord(layer=number, name=name, heads=count, interface=heads.interface))
        if self.layers[number].heads != count:
            raise AttentionNotSeenError(
                f"{name} had {self.layers[number].heads} heads and now has {count}: heads cannot be distinguished "
                "from inputs; describe where q, k, v are"
            )
        return dataclasses.replace(_detached(heads), layer=number, name=name)


def _detached(heads: Heads) -> Heads:
    """Return the call, and the maps of its operands, without autograd's graph."""
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


def _detached_map(linear_map: LinearMap | None) -> LinearMap | None:
    if linear_map is None:
        return None
    bias = None if linear_map.bias is None else linear_map.bias.detach()
    return LinearMap(x=linear_map.x.detach(), weight=linear_map.weight.detach(), bias=bias)


@contextmanager
def capture(
    model: nn.Module,
    *,
    describe: Sequence[AttentionSpec] = (),
    keep: Callable[[Heads], None] | None = None,
    allow_unseen: bool = False,
    residual_stream: bool = False,
    linear_maps: bool = True,
) -> Iterator[Capture]:
    """Record `Heads` of every attention call while the model runs inside the block, in the thread that entered it.

    The model's outputs keep every bit, and afterwards the model is as it was, also when it raises. Nothing of torch or
    transformers is changed: captures may be nested, and other threads may capture other models. Calls in other threads
    do not belong to the capture: those that another thread makes on this model, at the same time or after the
    capture's thread has ended, those of threads that the model's forward starts, and those that autograd repeats in
    its own threads. `torch.nn.DataParallel` runs replicas in threads: capture its `module`.

    keep: receives each call instead of the list `heads`, so that memory need not grow
    allow_unseen: list modules that look like attention and ran unseen in `unseen` instead of raising
    residual_stream: also record `Heads.residual_stream`, the tokens that the model carries past each block of
        self-attention, to the bit and whatever the architecture (`_capture.residual` has the rule). It is None for
        cross-attention, and for attention parallel to an MLP or without a path around it. A call then reaches `keep`
        when its residual stream is known, up to two calls later or when the pass is over, in the same order; if the
        model raises, waiting calls are dropped. Torch's fused encoder adds nothing that could be seen: `between` and
        `after` are those of the second run in which its attention is seen, equal to rounding.
    linear_maps: look for the maps that made queries, keys and values, which takes time. With the residual stream they
        are always looked for

    On leaving, raise `AttentionNotSeenError` if the model ran and no attention was seen, or if a module that looks like
    attention ran unseen.
    """
    result = Capture(keep, residual_stream=residual_stream, linear_maps=linear_maps)
    with recorded(model, result, describe=describe, allow_unseen=allow_unseen):
        yield result


@contextmanager
def recorded(
    model: nn.Module, result: Capture, *, describe: Sequence[AttentionSpec], allow_unseen: bool
) -> Iterator[None]:
    """Attach the capture to every attention call of the model; on leaving, raise if attention ran unseen."""
    refuse_compiled(model)
    copies = frees_weights(model)
    for trace in (result.maps, result.stream):
        if trace is not None:
            trace.copies = copies
    expected = ExpectedModules(model, lambda: result.counter.listening)
    try:
        with without_compiling(), attached(model, result, result.counter, describe=describe):
            yield
    finally:
        expected.remove()
    names = {layer.name.split(", call ")[0] for layer in result.layers}
    result.unseen = expected.unseen(names | result.outside)
    if not result.layers and (result.passes or expected.ran or result.outside):
        raise AttentionNotSeenError(_nothing_seen(model, result))
    if result.unseen and not allow_unseen:
        tried = ", ".join(INTERFACES.names())
        raise AttentionNotSeenError(
            f"{len(result.unseen)} attention modules ran unseen, {_listed(result.unseen)}; tried {tried}; "
            "describe them, or allow unseen modules if they are not attention over tokens"
        )


def refuse_compiled(model: nn.Module) -> None:
    """Raise for a compiled or scripted model, which calls no Python code that could be intercepted."""
    if isinstance(model, torch.jit.ScriptModule):
        raise AttentionNotSeenError("a scripted model cannot be captured: pass the model it was made from")
    if hasattr(model, COMPILED_MODEL):
        raise AttentionNotSeenError("a compiled model cannot be captured: pass model._orig_mod")


def _nothing_seen(model: nn.Module, result: Capture) -> str:
    kind = type(model).__name__
    if result.outside:
        return f"attention ran outside {kind}.forward, in {min(result.outside)}: capture the part that you call"
    tried = ", ".join(INTERFACES.names())
    if not result.unseen:
        page = "docs/describing-a-model.md"
        return f"{kind} has no attention layers Clearhead can see. Tried: {tried}. Describe them ({page})"
    return (
        f"the attention of {_listed(result.unseen)} was not seen. Tried: {tried}. Describe where q, k, v are "
        "(docs/describing-a-model.md)"
    )


def _listed(names: Sequence[str], limit: int = 2) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
