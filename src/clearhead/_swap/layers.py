"""The layers that `layers=` selects, and whether they are those in the model's first forward pass."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from clearhead._swap.operator import OperatorHandler
from clearhead.errors import InputError
from clearhead.interfaces import AttentionNotSeenError, Layer, sdpa
from clearhead.interfaces.forward import unwrap_forward, wrap_forward

Layers = str | int | Sequence[int | str]
"""Which layers: "all", or numbers in forward-pass order and paths, as `Swap.layers` has them."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A layer to swap, its number (None if only its path is known), and whether it was selected by that number."""

    layer: Layer
    index: int | None
    by_number: bool = False


def select_layers(model: nn.Module, layers: Sequence[Layer], which: Layers) -> list[Selected]:
    """Return the selected layers in the model's order; raise InputError with a list of all layers if one is missing.

    A path may also name a module that is no known layer, if it neither contains one nor is part of one: it then has to
    call torch's fused attention.
    """
    if which == "all":
        if not layers:
            raise InputError(
                f"{type(model).__name__} has no attention layer that could be found: name one by its path, "
                "or describe where its q, k, v are"
            )
        return [Selected(_named(layer), index) for index, layer in enumerate(layers)]
    try:
        names = [which] if isinstance(which, int | str) else list(which)
    except TypeError:
        raise InputError(f'expected "all", numbers or paths as layers; got {which!r}') from None
    selected: dict[str, Selected] = {}
    for name in names:
        choice = _select(model, layers, name)
        if choice.layer.path not in selected or choice.by_number:
            selected[choice.layer.path] = choice
    if not selected:
        raise InputError('expected "all", numbers or paths as layers; got none')
    return sorted(selected.values(), key=lambda choice: (choice.index is None, choice.index or 0))


def _select(model: nn.Module, layers: Sequence[Layer], name: object) -> Selected:
    for index, layer in enumerate(layers):
        by_number = name == index and not isinstance(name, bool)
        if by_number or name == (layer.path or "(model)"):
            return Selected(_named(layer), index, by_number)
    if isinstance(name, str) and not any(_nested(name, layer.path) for layer in layers):
        module = dict(model.named_modules()).get(name)
        if module is not None and module is not model:
            return Selected(Layer(path=name, module=module, interface=sdpa.NAME), None)
    shown = [f"{index} {layer.path or '(model)'}" for index, layer in enumerate(layers)]
    listed = ", ".join(shown if len(shown) <= 12 else [*shown[:3], "...", shown[-1]]) or "none"
    raise InputError(
        f"there is no attention layer {name!r} in {type(model).__name__}; there are {listed} (a module that runs "
        "several times is one layer here)"
    )


def _named(layer: Layer) -> Layer:
    return replace(layer, path=layer.path or "(model)")


def _nested(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


class FirstPass:
    """A wrapper of the model's forward until every swapped layer has run once in evaluation.

    A swap without effect must not go unnoticed, nor one in another layer than its number says: `find` numbers layers
    by the model's code, and this compares the numbers with the first pass. In training, layers may be dropped at
    random, so it waits.

    order: the layers that ran, by path and number of the call within the pass, in forward-pass order
    ran, failed: whether a pass has ended, and whether the last one raised
    """

    permanent = True

    def __init__(
        self, model: nn.Module, layers: Sequence[Layer], selected: Sequence[Selected], handlers: list[OperatorHandler]
    ) -> None:
        self.model, self.selected, self.handlers = model, selected, handlers
        self.ran, self.failed = False, False
        self.order: list[tuple[str, int]] = []
        self._counts: Counter[str] = Counter()
        self._running = False
        self._notes = [(layer.runs_in or layer.module, _Note(self, layer.path or "(model)")) for layer in layers]

    def install(self) -> None:
        """Wrap the forwards of the model and of its layers."""
        for module, note in self._notes:
            wrap_forward(module, note)
        wrap_forward(self.model, self)

    def remove(self) -> None:
        """Leave the forwards as they were."""
        unwrap_forward(self.model, self)
        for module, note in self._notes:
            unwrap_forward(module, note)

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return proceed(*args, **kwargs)
        self.failed = self._running = True
        self._counts.clear()
        try:
            output = proceed(*args, **kwargs)
        finally:
            self._running = False
        self.ran, self.failed = True, False
        if not module.training or {note.path for _, note in self._notes} <= {path for path, _ in self.order}:
            self.check()
            self.remove()
        return output

    def note(self, path: str) -> None:
        """Add a run of a layer to the order."""
        if not self._running:  # a part of the model that is called alone, as encoders are in generation
            self._counts.clear()
        self._counts[path] += 1
        if (path, self._counts[path]) not in self.order:
            self.order.append((path, self._counts[path]))

    def positions(self, path: str) -> tuple[int, ...]:
        """Return the numbers of a layer in forward-pass order, several if it runs several times."""
        return tuple(index for index, (other, _) in enumerate(self.order) if other == path)

    def check(self) -> None:
        """Raise unless every swapped layer was reached, and has the number by which it was selected."""
        missed = [handler for handler in self.handlers if not handler.reached]
        if missed:
            raise AttentionNotSeenError(
                f"{missed[0].needs.name} was never called in {', '.join(handler.name for handler in missed[:3])}"
                f"{f' and {len(missed) - 3} more' if len(missed) > 3 else ''}: these layers did not run, or not as "
                "their class says; leave them out of layers="
            )
        for choice in self.selected:
            path, positions = choice.layer.path, self.positions(choice.layer.path)
            if not choice.by_number or positions == (choice.index,) or not positions:
                continue
            if len(positions) > 1:
                raise InputError(
                    f"{path} runs {len(positions)} times in a forward pass, as layers {positions[0]} to "
                    f"{positions[-1]}, and a swap acts on all of them: select it by its path"
                )
            raise InputError(
                f"{path} was selected as layer {choice.index}, but runs as layer {positions[0]} in the forward pass: "
                "select it by its path"
            )


class _Note:
    """A forward wrapper that adds its layer to the order."""

    permanent = True

    def __init__(self, first_pass: FirstPass, path: str) -> None:
        self.first_pass, self.path = first_pass, path

    def __call__(self, module: nn.Module, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self.first_pass.note(self.path)
        return proceed(*args, **kwargs)
