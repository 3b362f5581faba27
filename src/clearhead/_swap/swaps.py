"""Swap: an operator in place of the attention of some layers, until it is undone."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._swap.layers import FirstPass, Layers, Selected, select_layers
from clearhead._swap.notes import add_note, find_swaps, remove_note
from clearhead._swap.operator import OperatorHandler, SwapWarning
from clearhead.errors import InputError
from clearhead.interfaces import AttentionSpec, Detach, Layer, attach, attachment_of, find
from clearhead.interfaces.whole_model import is_captured
from clearhead.modules import SubspaceAttention, SymmetricAttention
from clearhead.operators.requirements import CHILD_NAME, Buildable, instantiate, requirements_of, resolve_operator
from clearhead.private_names import COMPILED_MODEL

__all__ = ["Swap", "SwapWarning", "SwappedLayer", "find_swaps", "swap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedLayer:
    """A layer with another operator.

    index: its number in forward-pass order, by the model's code; None if it was selected by a path that is no known
        layer
    path: of its module
    positions: its numbers in the first forward pass, several if the module runs several times; empty before that
    """

    index: int | None
    path: str
    positions: tuple[int, ...] = ()


def swap(
    model: nn.Module,
    operator: str | Callable[..., Tensor] | Buildable,
    *,
    layers: Layers = "all",
    describe: Sequence[AttentionSpec] = (),
) -> "Swap":
    """Replace the attention of some layers by an operator, at once; leaving the block or `Swap.undo` restores it.

    operator: a drop-in of `clearhead.operators`, the name of one, or any function (q, k, v, *, mask, scale) -> o; a
        function takes no bias, cap or sinks, and cannot be saved
    layers: "all", a number, a path, or several; numbers are in forward-pass order, as in `capture` and `audit`. The
        first pass is compared with them, and a number that turns out wrong raises. A module that runs several times
        in a pass (ALBERT's shared layer) has several numbers and is selected by its path.
    describe: where q, k, v are in layers that write their attention out

    Only the selected modules change. Other models and threads are not affected, a swapped model trains, is copied and
    captured like any other, and its original attention is not computed (except in described layers). Masks,
    grouped-query heads and caches reach the operator as the layer had them; what it cannot take raises InputError when
    it occurs. A layer that is never reached raises `AttentionNotSeenError` after the first forward pass in evaluation,
    or on leaving the block. `SwapWarning` reports side effects.
    """
    _refuse(model)
    operator = resolve_operator(operator)
    model_layers = find(model, describe)
    selected = select_layers(model, model_layers, layers)
    result = Swap(model, operator, model_layers, selected)
    _warn_of_unused_queries(operator, [choice.layer for choice in selected])
    return result


class Swap:
    """An operator in some layers of a model, from the moment it is made.

    operator: the operator
    """

    def __init__(self, model: nn.Module, operator: Any, layers: Sequence[Layer], selected: Sequence[Selected]) -> None:
        self.model, self.operator = model, operator
        self._selected = tuple(selected)
        self._handlers: list[OperatorHandler] = []
        self._detach: list[tuple[nn.Module, Detach | None]] = []
        try:
            for choice in selected:
                self._attach(choice.layer)
        except BaseException:
            self._restore()
            raise
        self._first_pass = FirstPass(model, layers, selected, self._handlers)
        self._first_pass.install()
        add_note(model, self)

    def _attach(self, layer: Layer) -> None:
        module, needs = layer.module, requirements_of(self.operator)
        _require_free(layer)
        form = instantiate(self.operator, module)
        with_parameters = isinstance(form, nn.Module)
        if with_parameters:
            module.add_module(CHILD_NAME, form)  # type: ignore[arg-type]
        self._detach.append((module, None))
        handler = OperatorHandler(None if with_parameters else form, module, name=layer.path, needs=needs)
        self._handlers.append(handler)
        self._detach[-1] = (module, attach(layer, handler))

    def _restore(self) -> None:
        for module, detach in reversed(self._detach):
            if detach is not None:
                detach()
            module._modules.pop(CHILD_NAME, None)
        for handler in self._handlers:
            handler.past.clear()
        self._detach = []

    @property
    def layers(self) -> tuple[SwappedLayer, ...]:
        """The swapped layers."""
        return tuple(
            SwappedLayer(
                index=choice.index, path=choice.layer.path, positions=self._first_pass.positions(choice.layer.path)
            )
            for choice in self._selected
        )

    @property
    def calls(self) -> dict[str, int]:
        """The number of calls of each layer's operator, by path. Calls in code that torch compiled are not counted."""
        return {handler.name: handler.calls for handler in self._handlers}

    def undo(self) -> None:
        """Restore the model, whatever else was swapped or undone since. A second call does nothing."""
        self._restore()
        self._first_pass.remove()
        remove_note(self.model, self)

    def __enter__(self) -> "Swap":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()
        ran = self._first_pass.ran or any(handler.reached for handler in self._handlers)
        if kind is None and ran and not self._first_pass.failed:
            self._first_pass.check()

    def __repr__(self) -> str:
        paths = ", ".join(choice.layer.path for choice in self._selected[:2])
        more = ", ..." if len(self._selected) > 2 else ""
        state = "in" if self._detach else "undone, was in"
        return f"Swap({requirements_of(self.operator).name} {state} {len(self._selected)} layers: {paths}{more})"


def _refuse(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a scripted model cannot be swapped: pass the model it was made from")
    if hasattr(model, COMPILED_MODEL):
        raise InputError("a compiled model cannot be swapped: swap model._orig_mod, and compile it again")
    if is_captured(model):
        raise InputError("a capture of this model is open: swap before it, so that it records the swapped layers")


def _require_free(layer: Layer) -> None:
    attachment = attachment_of(layer.module)
    for handler in [] if attachment is None else attachment.handlers:
        if isinstance(handler, OperatorHandler):
            raise InputError(f"{layer.path} has another operator already, {handler.needs.name}: undo that swap first")


def _warn_of_unused_queries(operator: Any, layers: Sequence[Layer]) -> None:
    needs = requirements_of(operator)
    with_queries = [
        layer
        for layer in layers
        if not isinstance(layer.module, SymmetricAttention | SubspaceAttention)
        or getattr(layer.module, "query", None) is not None
    ]
    if needs.uses_queries or not with_queries:
        return
    groups = max(int(getattr(layer.module, "num_key_value_groups", 1)) for layer in with_queries)
    shared = f", and the {groups} query heads of each group, which share their keys, become equal" if groups > 1 else ""
    count = f"{len(with_queries)} layers" if len(with_queries) > 1 else with_queries[0].path
    warnings.warn(
        f"{needs.name} does not use the queries of {count}: W_Q no longer acts there, every token attends with its "
        f"own key as query, which the model was not trained for{shared}",
        SwapWarning,
        stacklevel=3,
    )
