"""Swaps as files next to a model: names, numbers and tensors with checksums, never code.

Loading a model applies none of them; `load_swaps` does.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead._swap.notes import as_json, find_swaps, remove_config_note, stored_in_config
from clearhead._swap.swaps import Swap, swap
from clearhead.errors import InputError
from clearhead.interfaces import AttentionSpec
from clearhead.loading.objects import SWAP_FILE, SWAP_KEY
from clearhead.operators.named import operator_from_dict
from clearhead.operators.requirements import CHILD_NAME
from clearhead.storage import MAX_JSON_BYTES, parse_json, read_bytes, read_tensors, write_tensors
from clearhead.stored_json import read_json, write_json

TENSORS_FILE = "clearhead-swap.safetensors"
CONFIG_FILE = "config.json"


def save_swaps(model: nn.Module, folder: str | Path) -> None:
    """Write the swaps of a model of any kind, with the operators' parameters, into the folder of its own files.

    Hugging Face models also note their swaps in their config, so `save_pretrained` alone is enough for them.
    """
    folder = Path(folder)
    swaps = find_swaps(model)
    if not swaps:
        raise InputError("nothing is swapped in this model, so there is nothing to save")
    notes = [as_json(entry) for entry in swaps]
    folder.mkdir(parents=True, exist_ok=True)
    names, state = _operator_tensors(model, _paths(swaps)), model.state_dict()
    (folder / TENSORS_FILE).unlink(missing_ok=True)
    if names:
        write_tensors(folder / TENSORS_FILE, {name: state[name] for name in names})
    write_json(folder / SWAP_FILE, {"swaps": notes})


def load_swaps(
    model: nn.Module, folder: str | Path | None = None, *, describe: Sequence[AttentionSpec] = ()
) -> tuple[Swap, ...]:
    """Apply the swaps that `save_swaps` or `save_pretrained` wrote. Nothing else applies them.

    folder: where the model was saved; not needed for a Hugging Face model whose operators have no parameters, because
        its config has them

    Names and settings are checked as strictly as a caller's. Raise InputError if one is unknown, if a layer does not
    exist, or if parameters are missing; the model is then unchanged.
    """
    stored = stored_in_config(model) if folder is None else _stored_in(Path(folder))
    if stored is None:
        where = "the model's config notes no swap" if folder is None else f"{folder} holds no swap"
        raise InputError(f"{where}; save_swaps or save_pretrained of a swapped model writes one")
    entries = [_parse_entry(entry) for entry in stored] if isinstance(stored, list) and stored else []
    if not entries:
        raise InputError(f"expected a list of swaps; got {stored!r}")
    if find_swaps(model):
        raise InputError("the model has swaps already: undo them first")
    noted = stored_in_config(model)
    remove_config_note(model)
    applied: list[Swap] = []
    try:
        for operator, layers in entries:
            applied.append(swap(model, operator, layers=layers, describe=describe))
        _load_tensors(model, applied, None if folder is None else Path(folder))
    except BaseException:
        for entry in applied:
            entry.undo()
        if noted is not None:
            model.config.__dict__[SWAP_KEY] = noted
        raise
    return tuple(applied)


def _parse_entry(entry: Any) -> tuple[Any, list[str]]:
    if not isinstance(entry, dict) or not {"operator", "layers"} <= entry.keys() <= {"operator", "layers", "unnamed"}:
        raise InputError(f"expected a swap with an operator and layers; got {entry!r}")
    if entry["operator"] is None:
        raise InputError(f"{entry.get('unnamed')!r} had no name that a file can hold: swap it in yourself")
    layers = entry["layers"]
    if not isinstance(layers, list) or not layers or not all(isinstance(path, str) for path in layers):
        raise InputError(f"expected layers as paths; got {layers!r}")
    return operator_from_dict(entry["operator"]), layers


def _stored_in(folder: Path) -> Any:
    for file, key in ((SWAP_FILE, "swaps"), (CONFIG_FILE, SWAP_KEY)):
        path = folder / file
        if not path.is_file():
            continue
        stored = read_json(path) if file == SWAP_FILE else parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
        if isinstance(stored, dict) and stored.get(key) is not None:
            return stored[key]
    return None


def _paths(swaps: Iterable[Swap]) -> list[str]:
    return [layer.path for entry in swaps for layer in entry.layers]


def _operator_tensors(model: nn.Module, paths: Sequence[str]) -> list[str]:
    """Return the names of the operators' parameters in the model's state dict."""
    starts = tuple(f"{CHILD_NAME}." if path == "(model)" else f"{path}.{CHILD_NAME}." for path in paths)
    return [name for name in model.state_dict() if name.startswith(starts)]


def _load_tensors(model: nn.Module, applied: Sequence[Swap], folder: Path | None) -> None:
    names = set(_operator_tensors(model, _paths(applied)))
    if not names:
        return
    if folder is None:
        raise InputError("its operators have parameters, which a config does not hold: give the folder")
    loaded: dict[str, Tensor] = {}
    if (folder / TENSORS_FILE).is_file():
        tensors, _ = read_tensors(folder / TENSORS_FILE)
        loaded = {name: tensor for name, tensor in tensors.items() if name in names}
    else:
        for file in sorted(file for file in folder.glob("*.safetensors") if file.is_file()):
            try:
                with safe_open(file, framework="pt") as weights:
                    loaded |= {name: weights.get_tensor(name) for name in names & set(weights.keys())}
            except (OSError, SafetensorError) as error:
                raise InputError(f"cannot read {file}: {error}") from None
    state = model.state_dict()
    wrong = sorted(name for name in names if name not in loaded or loaded[name].shape != state[name].shape)
    if wrong:
        raise InputError(f"{folder} does not hold {wrong[0]} as the operator has it")
    model.load_state_dict(loaded, strict=False)
