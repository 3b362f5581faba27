"""Which layers a swap means."""

from collections.abc import Sequence

from torch import nn

from clearhead.errors import InputError
from clearhead.sockets.doors.sdpa import SdpaDoor
from clearhead.sockets.finding import Layer

__all__ = ["Layers", "chosen_layers"]

Layers = str | int | Sequence[int | str]
"""Which layers: "all", or numbers and paths as `Swap.layers` has them."""


def chosen_layers(model: nn.Module, found: Sequence[Layer], layers: Layers) -> list[Layer]:
    """The layers meant, in the model's order; ValueError lists what there is.

    A path may also name a module that was not found, if it neither holds a layer nor is part of one: it then has to
    call torch's fused attention.
    """
    if layers == "all":
        if not found:
            raise InputError(
                f"{type(model).__name__} has no attention layer that could be found: name one by its path, "
                "or describe where its q, k, v are"
            )
        return list(found)
    try:
        wanted = [layers] if isinstance(layers, int | str) else list(layers)
    except TypeError:
        raise InputError(f'expected "all", numbers or paths as layers; got {layers!r}') from None
    chosen = {layer.path: layer for layer in (_layer(model, found, which) for which in wanted)}
    if not chosen:
        raise InputError('expected "all", numbers or paths as layers; got none')
    return sorted(chosen.values(), key=lambda layer: (layer.index is None, layer.index or 0))


def _layer(model: nn.Module, found: Sequence[Layer], which: object) -> Layer:
    for layer in found:
        if which == layer.path or (which == layer.index and not isinstance(which, bool)):
            return layer
    if isinstance(which, str) and not any(_nested(which, layer.path) for layer in found):
        named = dict(model.named_modules()).get(which)
        if named is not None and named is not model:
            return Layer(index=None, path=which, module=named, door=SdpaDoor())
    shown = [f"{layer.index} {layer.path}" for layer in found]
    listed = ", ".join(shown if len(shown) <= 12 else [*shown[:3], "...", shown[-1]]) or "none"
    raise InputError(f"there is no attention layer {which!r} in {type(model).__name__}; there are {listed}")


def _nested(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
