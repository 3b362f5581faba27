"""Folders of Clearhead's own models: config.json, which names the kind, and model.safetensors. They hold no code.

Both files carry a checksum and are refused if they do not match it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.loading.huggingface import Draw
from clearhead.loading.model import MARKER, Loader
from clearhead.loading.objects import LoadError, first_line
from clearhead.loading.processors import Processor
from clearhead.operators.requirements import CHILD_NAME
from clearhead.storage import MAX_JSON_BYTES, parse_json, read_bytes, read_tensors, write_tensors
from clearhead.stored_json import read_json, write_json
from clearhead_lab.models.crate import Crate, CrateConfig
from clearhead_lab.models.crate_autoencoder import CrateAutoencoder, CrateAutoencoderConfig
from clearhead_lab.models.crate_language import CrateLanguage, CrateLanguageConfig
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.models.segmenter import Segmenter, SegmenterConfig
from clearhead_lab.models.transformer_block import config_as_json, config_from_json
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of model: its class, called with a config and a generator, and the class of its config."""

    model: Callable[..., Any]
    config: type[Any]


KINDS = {
    "vision-transformer": Kind(model=VisionTransformer, config=VisionTransformerConfig),
    "language-model": Kind(model=LanguageModel, config=LanguageModelConfig),
    "segmenter": Kind(model=Segmenter, config=SegmenterConfig),
    "crate": Kind(model=Crate, config=CrateConfig),
    "crate-language": Kind(model=CrateLanguage, config=CrateLanguageConfig),
    "crate-autoencoder": Kind(model=CrateAutoencoder, config=CrateAutoencoderConfig),
}
"""Every kind by the name that config.json gives it."""


def save_native(model: nn.Module, folder: Path) -> None:
    """Write the folder. Each file is replaced atomically. Operators of a swap are not saved."""
    name = _kind_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor for name, tensor in model.state_dict().items() if CHILD_NAME not in name.split(".")}
    write_tensors(folder / WEIGHTS_FILE, weights, metadata={"format": "pt"})
    write_json(folder / CONFIG_FILE, {MARKER: name, **config_as_json(model.config)})


def is_native(folder: Path) -> bool:
    """Return whether config.json says that the folder holds one of Clearhead's own models."""
    path = folder / CONFIG_FILE
    try:
        config = parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
    except (OSError, InputError):
        return False
    return isinstance(config, dict) and MARKER in config


def load_native(folder: Path) -> nn.Module:
    """Return the model of the folder, on the CPU.

    Raise DamagedFileError if a file does not match its checksum, and LoadError if weights and config do not fit.
    """
    kind, config = _read_config(folder)
    try:
        weights, _ = read_tensors(folder / WEIGHTS_FILE)
    except FileNotFoundError:
        raise LoadError(f"{folder} has no {WEIGHTS_FILE}; give the whole folder that the training wrote") from None
    _check_layers(folder, config, len(weights))
    with torch.device("meta"):  # sizes that the weights do not have take no memory
        shapes = {name: tuple(tensor.shape) for name, tensor in _build(folder, kind, config).state_dict().items()}
    stored = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in {*shapes, *stored} if shapes.get(name) != stored.get(name))
    if wrong:
        raise LoadError(
            f"the weights in {folder} do not fit its {CONFIG_FILE}: {wrong[0]} should be "
            f"{shapes.get(wrong[0], 'absent')}, not {stored.get(wrong[0], 'absent')}"
        )
    model = _build(folder, kind, config)
    model.load_state_dict(weights)
    return model


def draw_baseline(model: nn.Module, seed: int) -> nn.Module:
    """Return a model of the same config with fresh random weights drawn from `seed`: the baseline."""
    baseline: nn.Module = KINDS[_kind_of(model)].model(model.config, generator=torch.Generator().manual_seed(seed))
    return baseline.eval()


def native_processor(model: nn.Module) -> Processor | None:
    """Return the processor of a model of Clearhead for square images; None for its other models.

    Images are resized and have numbers from 0 to 1, which the model normalises itself.
    """
    config = getattr(model, "config", None)
    size, channels = getattr(config, "image_size", None), getattr(config, "channels", None)
    if size is None or channels not in (1, 3):
        return None

    def encode(images: Sequence[Any]) -> Mapping[str, Tensor]:
        resized = [image.convert("L" if channels == 1 else "RGB").resize((size, size)) for image in images]
        pixels = np.stack([np.asarray(image, dtype=np.float32).reshape(size, size, channels) for image in resized])
        return {"images": torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255}

    def refuse(*waves: Any) -> Any:
        raise LoadError("the model reads images, not sound; give --images")

    return Processor(images=encode, audio=refuse, rate=refuse)


def _kind_of(model: nn.Module) -> str:
    for name, kind in KINDS.items():
        if type(model) is kind.model:
            return name
    raise InputError(f"expected one of Clearhead's own models; got a {type(model).__name__}")


def _read_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the kind of the model and its config."""
    config = read_json(folder / CONFIG_FILE)
    kind = config.pop(MARKER, None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise LoadError(f"{folder} holds a {kind}, which this version cannot load; it can load: {', '.join(KINDS)}")
    return kind, config


def _check_layers(folder: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Refuse more layers than the weights file has tensors: building millions of layers takes hours."""
    for name in ("layers", "decoder_layers"):
        layers = config.get(name, 0)
        if isinstance(layers, int) and layers > tensors:
            raise LoadError(
                f"the weights in {folder} do not fit its {CONFIG_FILE}: it has {name} of {layers}, "
                f"but there are only {tensors} tensors"
            )


def _build(folder: Path, kind: str, config: Mapping[str, Any]) -> nn.Module:
    """Return a model of the config with arbitrary weights."""
    try:
        model: nn.Module = KINDS[kind].model(config_from_json(KINDS[kind].config, config))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise LoadError(f"{folder / CONFIG_FILE} does not describe a {kind}: {first_line(error)}") from None
    return model


def _load(folder: Path) -> tuple[nn.Module, Processor | None]:
    model = load_native(folder)
    return model, native_processor(model)


def _draw(model: nn.Module) -> Draw | None:
    return functools.partial(draw_baseline, model) if type(model) in {kind.model for kind in KINDS.values()} else None


LOADER = Loader(reads=is_native, load=_load, draw=_draw)
"""The loader of Clearhead's own models, for the instrument."""
