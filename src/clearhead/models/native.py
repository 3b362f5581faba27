"""Models of Clearhead's own as folders: config.json, which says so, and model.safetensors. Nothing in it is code."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clearhead.errors import InputError
from clearhead.models.crate import Crate, CrateConfig, crate_from_json
from clearhead.models.crate_autoencoder import CrateAutoencoder, CrateAutoencoderConfig, autoencoder_from_json
from clearhead.models.crate_language import CrateLanguage, CrateLanguageConfig, language_from_json
from clearhead.models.objects import LoadError, first_line
from clearhead.models.vit import (
    VisionTransformer,
    config_as_json,
    config_from_json,
)
from clearhead.operators.placing import CHILD

__all__ = ["KINDS", "MARKER", "is_native", "load_native", "save_native", "untrained"]

MARKER = "clearhead_model"
"""The key of config.json that only models of Clearhead's own have. Its value names the kind."""

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of model: its class, called with a config and a generator, and its config as plain values and back."""

    model: Callable[..., Any]
    as_json: Callable[[Any], dict[str, Any]]
    from_json: Callable[[Mapping[str, Any]], Any]


KINDS = {
    "vision-transformer": Kind(model=VisionTransformer, as_json=config_as_json, from_json=config_from_json),
    "crate": Kind(model=Crate, as_json=CrateConfig.as_json, from_json=crate_from_json),
    "crate-language": Kind(model=CrateLanguage, as_json=CrateLanguageConfig.as_json, from_json=language_from_json),
    "crate-autoencoder": Kind(
        model=CrateAutoencoder, as_json=CrateAutoencoderConfig.as_json, from_json=autoencoder_from_json
    ),
}
"""Every kind by the name that it has in a folder."""


def save_native(model: nn.Module, folder: Path) -> None:
    """Write the folder; each file is complete or as it was before."""
    name = _kind_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    config = {MARKER: name, **KINDS[name].as_json(model.config)}
    started = folder / f".{CONFIG_FILE}"
    started.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    own = {name: tensor for name, tensor in model.state_dict().items() if CHILD not in name.split(".")}  # no swap's
    weights = {name: tensor.detach().contiguous().clone() for name, tensor in own.items()}
    save_file(weights, folder / f".{WEIGHTS_FILE}", metadata={"format": "pt"})
    (folder / f".{WEIGHTS_FILE}").replace(folder / WEIGHTS_FILE)
    started.replace(folder / CONFIG_FILE)


def is_native(folder: Path) -> bool:
    """Whether the folder says that it holds a model of Clearhead's own."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and MARKER in config


def load_native(folder: Path) -> nn.Module:
    """The model that the folder holds, on the CPU."""
    with torch.device("meta"):  # so that a file of sizes that its weights do not have takes no memory
        wanted = {name: tuple(tensor.shape) for name, tensor in _empty(folder).state_dict().items()}
    try:
        weights = load_file(folder / WEIGHTS_FILE)
    except FileNotFoundError:
        raise LoadError(f"{folder} has no {WEIGHTS_FILE}; give the whole folder that the training wrote") from None
    except (OSError, SafetensorError) as error:
        raise LoadError(f"cannot read {folder / WEIGHTS_FILE}: {first_line(error)}") from None
    got = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in {*wanted, *got} if wanted.get(name) != got.get(name))
    if wrong:
        raise LoadError(
            f"the weights in {folder} do not fit its {CONFIG_FILE}: {wrong[0]} should be "
            f"{wanted.get(wrong[0], 'absent')}, not {got.get(wrong[0], 'absent')}"
        )
    model = _empty(folder)
    model.load_state_dict(weights)
    return model


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same sizes as it was before any training, drawn by `seed`: the control of initialisation."""
    drawn: nn.Module = KINDS[_kind_of(model)].model(model.config, generator=torch.Generator().manual_seed(seed))
    return drawn.eval()


def _kind_of(model: nn.Module) -> str:
    for name, kind in KINDS.items():
        if type(model) is kind.model:
            return name
    raise InputError(f"expected a model of Clearhead's own; got a {type(model).__name__}")


def _empty(folder: Path) -> nn.Module:
    """A model of the folder's sizes."""
    stored: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    name = stored.pop(MARKER)
    if not isinstance(name, str) or name not in KINDS:
        raise LoadError(f"{folder} holds a {name}, which this version does not know; it knows {', '.join(KINDS)}")
    try:
        made: nn.Module = KINDS[name].model(KINDS[name].from_json(stored))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise LoadError(f"{folder / CONFIG_FILE} is no {name}: {first_line(error)}") from None
    return made
