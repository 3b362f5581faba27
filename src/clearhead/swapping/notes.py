"""Which swaps a model has, noted on the model; and in its config, where it has one that is saved with it."""

from typing import TYPE_CHECKING, Any

from torch import nn

from clearhead.models.objects import SWAP_KEY
from clearhead.operators.drop_in import drop_in_as_json
from clearhead.operators.placing import traits_of

if TYPE_CHECKING:
    from clearhead.swapping.swap import Swap

__all__ = ["as_json", "find_swaps", "forget_stored", "note", "stored_in_config", "strike"]

_KEY, _BEFORE = "_clearhead_swaps", "_clearhead_noted_before"


def find_swaps(model: nn.Module) -> tuple["Swap", ...]:
    """The swaps that the model has, a copy of a swapped model too, in the order in which they were made."""
    return tuple(model.__dict__.get(_KEY, ()))


def as_json(swap: "Swap") -> dict[str, Any]:
    """A swap as plain JSON. ValueError if its operator has no name."""
    return {"operator": drop_in_as_json(swap.operator), "layers": [layer.path for layer in swap.layers]}


def note(model: nn.Module, swap: "Swap") -> None:
    """Add a swap."""
    if not find_swaps(model):
        model.__dict__[_BEFORE] = stored_in_config(model)
    model.__dict__.setdefault(_KEY, []).append(swap)
    _write(model)


def strike(model: nn.Module, swap: "Swap") -> None:
    """Remove a swap; with the last one, the model and its config say what they said before the first."""
    swaps = [other for other in find_swaps(model) if other is not swap]
    if len(swaps) == len(find_swaps(model)):
        return
    if swaps:
        model.__dict__[_KEY] = swaps
        _write(model)
        return
    del model.__dict__[_KEY]
    before = model.__dict__.pop(_BEFORE)
    config = _config(model)
    if config is not None and before is None:
        config.__dict__.pop(SWAP_KEY, None)
    elif config is not None:
        config.__dict__[SWAP_KEY] = before


def stored_in_config(model: nn.Module) -> Any:
    """What the model's config notes, None if nothing; not to be trusted, for it may come from a file."""
    config = _config(model)
    return None if config is None else config.__dict__.get(SWAP_KEY)


def forget_stored(model: nn.Module) -> None:
    """Remove the note of a config that was read from a file."""
    config = _config(model)
    if config is not None:
        config.__dict__.pop(SWAP_KEY, None)


def _config(model: nn.Module) -> Any:
    """The config that `save_pretrained` writes."""
    config = getattr(model, "config", None)
    return config if hasattr(model, "save_pretrained") and hasattr(config, "to_dict") else None


def _write(model: nn.Module) -> None:
    config = _config(model)
    if config is not None:
        config.__dict__[SWAP_KEY] = [_noted(swap) for swap in find_swaps(model)]


def _noted(swap: "Swap") -> dict[str, Any]:
    """As JSON; an operator without a name leaves a note that cannot be read back, rather than none."""
    try:
        return as_json(swap)
    except ValueError:
        paths = [layer.path for layer in swap.layers]
        return {"operator": None, "unnamed": traits_of(swap.operator).name, "layers": paths}
