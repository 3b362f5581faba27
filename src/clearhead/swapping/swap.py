"""The swap itself: an operator in some layers of a model, and the way back."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules import SubspaceAttention, SymmetricAttention
from clearhead.operators.placing import Builds, operator_called, traits_of
from clearhead.sockets import AttentionNotSeenError, AttentionSpec, sockets_are_open
from clearhead.sockets.answering import SwapWarning
from clearhead.sockets.doors import Door
from clearhead.sockets.finding import Layer, find_layers
from clearhead.sockets.overriding import remove_wrapper, wrap_forward
from clearhead.sockets.places import Place, put_into, take_out
from clearhead.swapping.choosing import Layers, chosen_layers
from clearhead.swapping.notes import find_swaps, note, strike

__all__ = ["Layers", "Swap", "SwappedLayer", "find_swaps", "swap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedLayer:
    """A layer with another operator: its number among the attention layers of the model (None if it was only named by
    its path), and its path."""

    index: int | None
    path: str


def swap(
    model: nn.Module,
    operator: str | Callable[..., Tensor] | Builds,
    *,
    layers: Layers = "all",
    describe: Sequence[AttentionSpec] = (),
) -> "Swap":
    """Put an operator into attention layers of a model, at once; leaving the block or `Swap.undo` takes it out again.

    operator: a drop-in of `clearhead.operators`, the name of one, or any function (q, k, v, *, mask, scale) -> o; a
        function takes no bias, cap or sinks, and cannot be saved
    layers: "all", a number, a path, or several; numbers count the attention layers in the order of `named_modules`
    describe: where q, k, v are in layers that write their attention out

    Only the chosen modules are touched, nothing of the process: other models and threads do not notice, a swapped model
    trains, is copied and captured like any other, and its original attention is not computed beside the operator's
    (except in described layers). Masks, grouped-query heads and caches reach the operator as the layer had them; what
    it cannot take is refused in words when it comes. A layer that is never reached raises `AttentionNotSeenError` after
    the first forward pass in evaluation, or on leaving the block. `SwapWarning` says what else changes.
    """
    _refuse_what_calls_no_python(model)
    operator = operator_called(operator)
    chosen = chosen_layers(model, find_layers(model, describe), layers)
    made = Swap(model, operator, chosen)
    _warn_of_unused_queries(operator, chosen)
    return made


class Swap:
    """An operator in some layers of a model, from the moment it is made.

    operator: what was put there
    layers: where
    """

    def __init__(self, model: nn.Module, operator: Any, chosen: Sequence[Layer]) -> None:
        self.model, self.operator = model, operator
        self.layers = tuple(SwappedLayer(index=layer.index, path=layer.path) for layer in chosen)
        self._places: list[Place] = []
        self._undo: list[tuple[nn.Module, Door | None]] = []
        try:
            for layer in chosen:
                self._put(layer)
        except BaseException:
            self._close()
            raise
        self._watch = _Watch(self._places)
        wrap_forward(model, self._watch)
        note(model, self)

    def _put(self, layer: Layer) -> None:
        self._places.append(put_into(layer.module, self.operator, name=layer.path, shows=layer.door.shows))
        self._undo.append((layer.module, None))
        layer.door.open(layer.module)
        self._undo[-1] = (layer.module, layer.door)

    def _close(self) -> None:
        for module, door in reversed(self._undo):
            if door is not None:
                door.close(module)
            take_out(module)
        self._undo = []

    @property
    def calls(self) -> dict[str, int]:
        """How often each layer's operator was called, by path. In code that torch compiled, calls are not counted."""
        return {place.name: place.calls for place in self._places}

    def undo(self) -> None:
        """Leave the model as it was, whatever else was swapped or undone since. A second time does nothing."""
        self._close()
        remove_wrapper(self.model, self._watch)
        strike(self.model, self)

    def __enter__(self) -> "Swap":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()
        ran = self._watch.ran or any(place.reached for place in self._places)
        if kind is None and ran and not self._watch.failed:
            self._watch.require_all()

    def __repr__(self) -> str:
        paths = ", ".join(layer.path for layer in self.layers[:2]) + (", ..." if len(self.layers) > 2 else "")
        state = "in" if self._undo else "undone, was in"
        return f"Swap({traits_of(self.operator).name} {state} {len(self.layers)} layers: {paths})"


class _Watch:
    """Stands before the model's forward until every layer was reached once: a swap that did not take must show.

    In training layers may be dropped at random, so there it waits.
    """

    def __init__(self, places: list[Place]) -> None:
        self.places, self.ran, self.failed = places, False, False

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return proceed(*args, **kwargs)
        self.failed = True
        output = proceed(*args, **kwargs)
        self.ran, self.failed = True, False
        if not module.training:
            self.require_all()
        if all(place.reached for place in self.places):
            remove_wrapper(module, self)
        return output

    def require_all(self) -> None:
        """Every place was reached, or else."""
        missed = [place for place in self.places if not place.reached]
        if missed:
            raise AttentionNotSeenError(
                f"{missed[0].traits.name} was never called in {', '.join(place.name for place in missed[:3])}"
                f"{f' and {len(missed) - 3} more' if len(missed) > 3 else ''}: these layers did not run, or not as "
                "their class says; leave them out of layers="
            )


def _refuse_what_calls_no_python(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a scripted model cannot be swapped: pass the model it was made from")
    if hasattr(model, "_orig_mod"):
        raise InputError("a compiled model cannot be swapped: swap model._orig_mod, and compile it again")
    if sockets_are_open():
        raise InputError("a capture is open: swap before it, so that it sees the layers as they are")


def _warn_of_unused_queries(operator: Any, chosen: Sequence[Layer]) -> None:
    traits = traits_of(operator)
    with_queries = [
        layer
        for layer in chosen
        if not isinstance(layer.module, SymmetricAttention | SubspaceAttention)
        or getattr(layer.module, "query", None) is not None
    ]
    if traits.uses_queries or not with_queries:
        return
    groups = max(int(getattr(layer.module, "num_key_value_groups", 1)) for layer in with_queries)
    shared = f", and the {groups} query heads of each group, which share their keys, become equal" if groups > 1 else ""
    count = f"{len(with_queries)} layers" if len(with_queries) > 1 else with_queries[0].path
    warnings.warn(
        f"{traits.name} leaves out the queries of {count}: W_Q no longer acts there, every token asks by its own key, "
        f"which the model's weights were not made for{shared}",
        SwapWarning,
        stacklevel=3,
    )
