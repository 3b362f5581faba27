"""The door of layers that write their attention out: their own output is computed, and exchanged on its way on.

Such a layer costs its own attention beside the operator's: there is no place in it where the first could be left out.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.sockets.described import AttentionSpec, attribute_of, child_of, read_described, split_heads
from clearhead.sockets.overriding import remove_wrapper, wrap_forward
from clearhead.sockets.places import place_of
from clearhead.sockets.tap import AttentionNotSeenError, named_arguments

__all__ = ["DescribedDoor"]

_RUNNING: ContextVar[dict[str, Any] | None] = ContextVar("running", default=None)
"""What the described layer that runs in this thread has shown so far."""


class DescribedDoor:
    """Hooks on the children that a description names, and a wrapper that knows when the layer runs."""

    shows: ClassVar[bool] = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.hooks: list[tuple[str, int, bool]] = []

    def open(self, module: nn.Module) -> None:
        """Stand before the module's forward, and at its children."""
        for key in ("q", "k", "v"):
            child, part = child_of(module, self.spec, getattr(self.spec, key))
            self.hooks.append((getattr(self.spec, key), child.register_forward_hook(_Keep(key, part)).id, False))
        if self.spec.out:
            child, _ = child_of(module, self.spec, self.spec.out)
            self.hooks.append((self.spec.out, child.register_forward_pre_hook(_exchange).id, True))
        wrap_forward(module, self)

    def close(self, module: nn.Module) -> None:
        """Leave the module as it was."""
        remove_wrapper(module, self)
        for where, hook, before in self.hooks:
            child, _ = child_of(module, self.spec, where)
            (child._forward_pre_hooks if before else child._forward_hooks).pop(hook, None)
        self.hooks = []

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The module's forward, whose attention output is exchanged before it goes through `out`, or is returned."""
        if torch.compiler.is_compiling():  # torch then runs this layer uncompiled, unless it was told not to
            raise InputError("a layer swapped through a description cannot be compiled: compile without fullgraph")
        running = {"arguments": named_arguments(proceed, *args, **kwargs), "module": module, "spec": self.spec}
        token = _RUNNING.set(running)
        try:
            output = proceed(*args, **kwargs)
            if not self.spec.out:
                first = output[0] if isinstance(output, tuple) else output
                answered = _answered(running, first)
                output = (answered, *output[1:]) if isinstance(output, tuple) else answered
        finally:
            _RUNNING.reset(token)
        if "done" not in running:
            place = place_of(module)
            assert place is not None
            raise AttentionNotSeenError(
                f"{place.name} ran without its child {self.spec.out!r}, so {place.traits.name} is not in it: mend the "
                "description, or leave it out of layers="
            )
        return output


class _Keep:
    """Keeps a projection, or a third of one, while a described layer runs."""

    def __init__(self, key: str, part: int | None) -> None:
        self.key, self.part = key, part

    def __call__(self, _module: nn.Module, _args: Any, output: Tensor) -> None:
        running = _RUNNING.get()
        if running is not None:
            running[self.key] = output if self.part is None else output.chunk(3, dim=-1)[self.part]


def _exchange(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    running = _RUNNING.get()
    if running is None or "done" in running:
        return None
    return (_answered(running, args[0]), *args[1:])


def _answered(running: dict[str, Any], joined: Tensor) -> Tensor:
    module, spec = running["module"], running["spec"]
    place = place_of(module)
    assert place is not None
    call = read_described(spec, module, running, place.name)
    heads = int(attribute_of(module, spec.heads))
    if call.v.shape[-1] != split_heads(joined, heads).shape[-1]:
        raise AttentionNotSeenError(f"{place.name}: v and the output are of different widths: mend the description")
    return place.answer(module, call).to(joined.dtype).transpose(1, 2).reshape(joined.shape)
