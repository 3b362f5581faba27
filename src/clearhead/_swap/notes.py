"""The swaps of a model, noted on the model, and in its config if that is saved with it."""

from typing import TYPE_CHECKING, Any

from torch import nn

from clearhead.loading.objects import SWAP_KEY
from clearhead.operators.named import operator_to_dict
from clearhead.operators.requirements import requirements_of

if TYPE_CHECKING:
    from clearhead._swap import Swap

_KEY, _BEFORE = "_clearhead_swaps", "_clearhead_config_note"


def find_swaps(model: nn.Module) -> tuple["Swap", ...]:
    """Return the swaps of a model, or of a copy of a swapped model, in the order in which they were made."""
    return tuple(model.__dict__.get(_KEY, ()))


def swapped_operators(model: nn.Module) -> dict[str, str]:
    """Return the operators of the model's swaps in words, by the path of their layer."""
    return {layer.path: repr(swap.operator) for swap in find_swaps(model) for layer in swap.layers}


def as_json(swap: "Swap") -> dict[str, Any]:
    """Return a swap as plain JSON; raise InputError if its operator has no name."""
    return {"operator": operator_to_dict(swap.operator), "layers": [layer.path for layer in swap.layers]}


def add_note(model: nn.Module, swap: "Swap") -> None:
    """Add a swap."""
    if not find_swaps(model):
        model.__dict__[_BEFORE] = stored_in_config(model)
    model.__dict__.setdefault(_KEY, []).append(swap)
    _write(model)


def remove_note(model: nn.Module, swap: "Swap") -> None:
    """Remove a swap. After the last one, the model and its config are as before the first."""
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
    """Return the note in the model's config, or None. It may come from a file: do not trust it."""
    config = _config(model)
    return None if config is None else config.__dict__.get(SWAP_KEY)


def remove_config_note(model: nn.Module) -> None:
    """Remove the note of a config that was read from a file."""
    config = _config(model)
    if config is not None:
        config.__dict__.pop(SWAP_KEY, None)


def _config(model: nn.Module) -> Any:
    """Return the config that `save_pretrained` writes."""
    config = getattr(model, "config", None)
    return config if hasattr(model, "save_pretrained") and hasattr(config, "to_dict") else None


def _write(model: nn.Module) -> None:
    config = _config(model)
    if config is not None:
        config.__dict__[SWAP_KEY] = [_noted(swap) for swap in find_swaps(model)]


def _noted(swap: "Swap") -> dict[str, Any]:
    """Return a swap as JSON; an operator without a name leaves a note that cannot be read back."""
    try:
        return as_json(swap)
    except ValueError:
        paths = [layer.path for layer in swap.layers]
        return {"operator": None, "unnamed": requirements_of(swap.operator).name, "layers": paths}
