"""Checks of a Hugging Face folder before transformers reads it. Its files are not trusted.

A folder is refused if reading it could hang, fill the memory, fetch or run something, read files outside the folder, or
give a model other than the one that was saved.
"""

import json
import math
import re
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from clearhead.errors import InputError
from clearhead.loading.objects import SWAP_FILE, SWAP_KEY, LoadError
from clearhead.storage import MAX_JSON_BYTES, parse_json, read_bytes

__all__ = ["StoredWeights", "check_folder", "check_processor", "check_size", "check_tokenizer", "read_weights"]

SAFE_ATTENTION = (None, "eager", "sdpa")
MAX_CONFIG_BYTES = 4 * 2**20
MAX_EXPANSION = 1000
"""By how much a tokenizer's replacements may lengthen a text."""
MAX_REPEATS = 1000
"""Layers, blocks or experts that are allowed whatever the weights are: some models share weights between layers."""
SLACK_ELEMENTS = 10_000_000
MAX_INPUT_SIZES = {
    **dict.fromkeys(("height", "width", "shortest_edge", "size", "crop_size"), 8192),
    **dict.fromkeys(("feature_size", "n_fft", "hop_length", "chunk_length", "num_mel_bins"), 2**16),
    "n_samples": 2**26, "nb_max_frames": 2**20, "max_length": 2**26,
}  # fmt: skip
"""The largest sizes of images, spectrograms and waveforms that a processor may ask for."""

_FLOATING = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
_REPEATS = re.compile(r"^n(um)?_.*(layer|block|expert|stage)s?$|(layer|block)s$|^depths?$")
"""Settings that say how often something is built."""
_PARAMETERS = ("weight", "bias", "gamma", "beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Sizes of the weights files: the number of tensors and of their elements."""

    tensors: int
    elements: int


def check_folder(folder: Path) -> None:
    """Raise LoadError if the folder holds no model, or one that must not be loaded."""
    for path in folder.iterdir():
        if not path.is_file() and not path.is_dir():
            raise LoadError(f"{path} is not a regular file; remove it")
    if (folder / SWAP_FILE).exists():
        raise LoadError(
            f"{folder} holds a model with swapped attention, which loading does not apply; "
            f"remove {SWAP_FILE} to load the model without it"
        )
    if (folder / "adapter_config.json").exists():
        raise LoadError(f"{folder} holds an adapter, which names a model elsewhere; merge it into its model first")
    _check_config(folder / "config.json")
    for index in folder.glob("*.index.json"):
        _check_index(index)


def read_weights(folder: Path) -> StoredWeights:
    """Return the sizes of the weights files, from their headers.

    Raise LoadError if the folder has no weights, or if a parameter is stored as integers, booleans or complex
    numbers: it would be converted without a warning.
    """
    shapes: list[tuple[int, ...]] = []
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise LoadError(
            f"{folder} has no weights; it needs a .safetensors file (or a .bin that loads with weights_only)"
        )
    for path in files:
        for name, dtype, shape in _safetensors_header(path) if path.suffix == ".safetensors" else _bin_header(path):
            if dtype not in _FLOATING and name.rpartition(".")[2] in _PARAMETERS:
                raise LoadError(f"{path} stores {name} as {dtype}; a parameter must be stored as floating point")
            shapes.append(shape)
    return StoredWeights(tensors=len(shapes), elements=sum(map(math.prod, shapes)))


def check_size(folder: Path, config: Any, weights: StoredWeights, build: Any) -> None:
    """Raise LoadError if config.json describes a much larger model than the weights hold, before any of it is built.

    build: a function that makes the model of `config`; it is called with tensors that take no memory
    """
    for name, number in _numbers(config.to_dict()):
        if _REPEATS.search(name) and number > max(weights.tensors, MAX_REPEATS):
            raise LoadError(
                f"{folder / 'config.json'} has {name} of {number}, but the weights have only {weights.tensors} tensors"
            )
    elements = 0
    # A config that cannot be built is reported when it is loaded.
    with suppress(Exception), torch.device("meta"):
        elements = sum(parameter.numel() for parameter in build(config).parameters())
    if elements > 4 * weights.elements + SLACK_ELEMENTS:
        raise LoadError(
            f"{folder / 'config.json'} describes a model of {elements:,} parameters, "
            f"but the weights have only {weights.elements:,}"
        )


def check_tokenizer(folder: Path) -> None:
    """Raise LoadError if a tokenizer file names a file outside the folder or could lengthen a text without limit."""
    for path, key in (
        (folder / "tokenizer_config.json", "_file"),
        (folder / "special_tokens_map.json", "_file"),
    ):
        if path.exists():
            for name, value in _items(_read(path, MAX_CONFIG_BYTES)):
                if name.endswith(key) and isinstance(value, str) and not _is_plain_name(value):
                    raise LoadError(f"{path} names the file {value}, which is outside the folder; remove {name} there")
    path = folder / "tokenizer.json"
    if path.exists():
        expansion = 1
        for name, value in _items(_read(path, MAX_JSON_BYTES).get("normalizer")):
            if name in ("content", "prepend") and isinstance(value, str):
                expansion *= max(1, len(value))
        if expansion > MAX_EXPANSION:
            raise LoadError(f"{path} has replacements that can lengthen a text {expansion} times; they are not run")


def check_processor(folder: Path, names: Iterable[str]) -> None:
    """Raise LoadError if a file of a processor asks for inputs of a size that would fill the memory."""
    for path in (folder / name for name in names if (folder / name).exists()):
        for name, number in _numbers(_read(path, MAX_CONFIG_BYTES)):
            if number > MAX_INPUT_SIZES.get(name, number):
                raise LoadError(f"{path} has {name} of {number:,}; at most {MAX_INPUT_SIZES[name]:,} is allowed")


def _check_config(path: Path) -> None:
    try:
        config = _read(path, MAX_CONFIG_BYTES)
    except FileNotFoundError:
        raise LoadError(
            f"{path.parent} has no config.json; give the folder that save_pretrained wrote, or "
            "package.module:function that returns the model (docs/models.md#models-that-do-not-load)"
        ) from None
    for name, value in _items(config):
        if "attn_implementation" in name:
            for backend in value.values() if isinstance(value, dict) else [value]:
                if not isinstance(backend, str | None) or backend not in SAFE_ATTENTION:
                    raise LoadError(f"{path} names the attention backend {backend!r}, not trusted; remove it")
        if "use_pretrained_backbone" in name and value:
            raise LoadError(
                f"{path} asks for a pretrained backbone, which would have to be downloaded; "
                'set "use_pretrained_backbone" to false there'
            )
    if config.get(SWAP_KEY) is not None:
        raise LoadError(
            f"{path} notes swapped attention, which loading does not apply; "
            f'remove "{SWAP_KEY}" there to load the model without it'
        )


def _check_index(path: Path) -> None:
    weight_map = _read(path, MAX_JSON_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        raise LoadError(f"{path} has no weight_map")
    for file in {str(file) for file in weight_map.values()}:
        if not _is_plain_name(file):
            raise LoadError(f"{path} names the file {file}, which is outside the folder")


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and PurePosixPath(name).name == name == PureWindowsPath(name).name


def _read(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a regular file of limited size and depth."""
    try:
        stored = parse_json(read_bytes(path, max_bytes=max_bytes), path)
    except InputError as error:
        raise LoadError(str(error)) from None
    if not isinstance(stored, dict):
        raise LoadError(f"{path} holds no JSON object")
    return stored


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of nested objects."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _items(item)
    elif isinstance(value, list):
        for item in value:
            yield from _items(item)


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield every key whose value is an integer or a list of integers, with its largest integer."""
    for name, value in _items(config):
        numbers = [item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, int)]
        if numbers:
            yield str(name), max(numbers)


def _safetensors_header(path: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield name, dtype and shape of every tensor."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MAX_JSON_BYTES)))
        for name, facts in header.items():
            if name != "__metadata__":
                yield name, str(facts["dtype"]), tuple(map(int, facts["shape"]))
    except (OSError, struct.error, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise LoadError(f"cannot load {path}: it is not a safetensors file") from None


def _bin_header(path: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the same for a pickle of tensors, without reading their data.

    What cannot be read is reported when it is loaded.
    """
    stored: Any = {}
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        stored = torch.load(path, map_location="meta", weights_only=True)
    for name, tensor in stored.items() if isinstance(stored, Mapping) else ():
        if isinstance(tensor, torch.Tensor):
            yield str(name), "F32" if tensor.is_floating_point() else str(tensor.dtype), tuple(tensor.shape)
