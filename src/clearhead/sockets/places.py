"""The place that an operator takes in a layer. It lies on the layer's module, and is copied and saved with it."""

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.placing import CHILD, Traits, placed_form, traits_of
from clearhead.sockets.answering import answer
from clearhead.sockets.call import Call
from clearhead.sockets.sdpa import show_call
from clearhead.sockets.tap import Tap

__all__ = ["Place", "being_watched", "crosses", "place_of", "put_into", "take_out", "watched_places"]

_KEY = "_clearhead_place"
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)

_WATCHING: list[Tap] = []


class Place:
    """An operator in one layer: what is called there, and how often it was.

    cross: whether the layer's keys are known to come from another sequence
    shows: whether it has to show its calls to whoever captures the model; others are seen from outside
    reached: whether it was called at all, in code compiled by torch too, where calls are not counted
    """

    def __init__(self, operator: Callable[..., Tensor] | None, *, name: str, traits: Traits, shows: bool) -> None:
        self.operator, self.name, self.traits, self.shows = operator, name, traits, shows
        self.cross = False
        self.calls = 0
        self.reached = False

    def answer(self, module: nn.Module, call: Call) -> Tensor:
        """The operator's output for what the module asks."""
        self.reached = True
        if not torch.compiler.is_compiling():
            self.calls += 1
        call = dataclasses.replace(call, cross=call.cross or self.cross)
        operator: Any = module._modules[CHILD] if self.operator is None else self.operator
        return answer(operator, self.traits, call, self.name)

    def answer_shown(self, module: nn.Module, call: Call) -> Tensor:
        """The same, shown to whoever captures the model."""
        tap = next((tap for tap in _WATCHING if id(module) in tap.names and not tap.inside), None)
        if tap is None:
            return self.answer(module, call)
        with tap.busy():
            out = self.answer(module, call)
        return show_call(tap, module, call, out, f"swapped in: {self.traits.name}")


def crosses(module: nn.Module, *names: str) -> bool:
    """Whether the module, or one of its names, says that its keys come from another sequence than its queries."""
    return getattr(module, "is_cross_attention", False) is True or any(_CROSS.search(name) for name in names)


def place_of(module: nn.Module) -> Place | None:
    """The place in this module, if an operator has been put there."""
    return module.__dict__.get(_KEY)


def put_into(module: nn.Module, operator: Any, *, name: str, shows: bool) -> Place:
    """Give the module a place with the operator. One with parameters becomes a child of the module."""
    there = place_of(module)
    if there is not None:
        raise InputError(f"{name} has another operator already, {there.traits.name}: undo that swap first")
    form = placed_form(operator, module)
    if isinstance(form, nn.Module):
        module.add_module(CHILD, form)
    held = None if isinstance(form, nn.Module) else form
    place = Place(held, name=name, traits=traits_of(operator), shows=shows)
    module.__dict__[_KEY] = place
    return place


def take_out(module: nn.Module) -> None:
    """Take the place and what is in it away."""
    module.__dict__.pop(_KEY, None)
    module._modules.pop(CHILD, None)


def being_watched() -> bool:
    """Whether this thread is where a captured call is being received, whose arithmetic is no call of the model."""
    return any(tap.receiving == threading.get_ident() for tap in _WATCHING)


@contextmanager
def watched_places(tap: Tap) -> Iterator[None]:
    """Let places that speak for themselves show their calls to the tap, which then leaves those modules alone."""
    for module in tap.model.modules():
        place = place_of(module)
        if place is not None and place.shows:
            tap.claimed.update(id(part) for part in module.modules())
    _WATCHING.append(tap)
    try:
        yield
    finally:
        _WATCHING.remove(tap)
