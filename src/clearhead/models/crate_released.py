"""Weights of CRATE as its authors' code names them (github.com/Ma-Lab-Berkeley/CRATE, model/crate.py), both ways.

Their file is a dictionary of tensors, or a checkpoint that holds one as "state_dict"; names start with "module." where
the training ran on several devices. It says neither how many heads there are nor how pixels were normalised.
"""

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from clearhead.errors import InputError
from clearhead.models.crate import CRATE_SIZES, Crate, CrateConfig
from clearhead.models.image_sizes import check_sizes
from clearhead.models.objects import LoadError, first_line

__all__ = ["IMAGENET_MEAN", "IMAGENET_SPREAD", "crate_from_released", "released_names", "released_state"]

IMAGENET_MEAN, IMAGENET_SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of red, green and blue: by these the authors' training script normalises pixels before the model sees them."""

_OUTSIDE = {
    "class_token": "cls_token",
    "positions": "pos_embedding",
    "embedding.0": "to_patch_embedding.1",
    "embedding.1": "to_patch_embedding.2",
    "embedding.2": "to_patch_embedding.3",
    "norm": "mlp_head.0",
    "head": "mlp_head.1",
}
_INSIDE = {
    "attention_norm": "0.norm",
    "attention.subspaces": "0.fn.qkv",
    "attention.out": "0.fn.to_out.0",
    "sparse_norm": "1.norm",
    "sparse.dictionary": "1.fn.weight",
}


def crate_from_released(source: str | Path | Mapping[str, Any], **others: Any) -> Crate:
    """The model whose weights the authors' code has saved, in evaluation and in single precision.

    source: a file (.safetensors, or one that torch.load reads without running code), or what such a file holds
    others: fields of `CrateConfig` that shapes do not tell. `heads` is needed unless width and layers are those of a
        published size; `channels` is 3; the pixels of three channels are normalised as the authors do, those of others
        by a half; step and penalty are the authors'

    The model takes images from 0 to 1 and normalises them itself: give it what theirs gets before `Normalize`. Every
    name and every shape must be there and no other; LoadError, a ValueError, says which is not.
    """
    state = _plain_state(_read(Path(source)) if isinstance(source, str | Path) else source)
    config = _config_from(state, others)
    with torch.device("meta"):  # only for its names and shapes
        names = released_names(empty := Crate(config))
    shapes = {names[name]: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    missing, unknown = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    if missing or unknown:
        told = [f"{what} {', '.join(names)}" for what, names in (("lack", missing), ("hold", unknown)) if names]
        raise LoadError(f"these are no weights of a CRATE as released: they {' and '.join(told)}")
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise LoadError(f"expected {name} {shape}; got {tuple(state[name].shape)}")
    model = Crate(config, generator=torch.Generator().manual_seed(0))
    model.load_state_dict({ours: state[theirs] for ours, theirs in names.items()})
    return model.eval()


def released_names(model: Crate) -> dict[str, str]:
    """The authors' name of each of the model's weights. ValueError for a form that theirs has not."""
    names = {}
    for name in model.state_dict():
        parts = name.split(".")
        known, before = (_OUTSIDE, "") if parts[0] != "blocks" else (_INSIDE, f"transformer.layers.{parts[1]}.")
        own = parts if not before else parts[2:]
        found = [cut for cut in (len(own), len(own) - 1) if ".".join(own[:cut]) in known]
        if not found:
            raise InputError(f"the released code has no place for {name}; it knows the form released alone")
        names[name] = before + ".".join([known[".".join(own[: found[0]])], *own[found[0] :]])
    wanted = {f"blocks.{i}.attention.out.bias" for i in range(len(model.blocks))}
    if not wanted <= names.keys():
        raise InputError(f"the released code needs {min(wanted - names.keys())}, which this form has not")
    return names


def released_state(model: Crate) -> dict[str, Tensor]:
    """The model's weights, not copied, under the authors' names: their code takes it by `load_state_dict`."""
    state = model.state_dict()
    return {theirs: state[ours] for ours, theirs in released_names(model).items()}


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise LoadError(f"there is no file {path}; give that which the authors' code saved") from None
    except pickle.UnpicklingError:
        raise LoadError(f"{path} holds more than tensors, and loading it could run code; save its tensors") from None
    except Exception as error:  # what torch raises on a file that is none of its own has no common kind
        raise LoadError(f"cannot read {path}: {first_line(error)}") from None


def _plain_state(held: Any) -> dict[str, Tensor]:
    """The tensors by name, out of a checkpoint and without "module."."""
    state = held["state_dict"] if isinstance(held, Mapping) and "state_dict" in held else held
    wrong = (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(k, str) and isinstance(x, Tensor) for k, x in state.items())
    )
    if wrong:
        raise LoadError('expected tensors by name, or a checkpoint that holds them as "state_dict"')
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in state)
    return {name.removeprefix(prefix) if wrapped else name: x for name, x in state.items()}


def _config_from(state: Mapping[str, Tensor], others: Mapping[str, Any]) -> CrateConfig:
    """The sizes that the shapes tell, and those that are given."""
    needed = ("pos_embedding", "to_patch_embedding.1.weight", "mlp_head.1.bias")
    lacking = [name for name in needed if name not in state]
    if lacking:
        raise LoadError(f"these are no weights of a CRATE as released: they lack {', '.join(lacking)}")
    positions, pixels = state["pos_embedding"], state["to_patch_embedding.1.weight"].numel()
    tokens, width = positions.shape[-2:] if positions.ndim >= 2 else (0, 0)
    channels = others.get("channels", 3)
    check_sizes(channels=channels)
    patch, side = math.isqrt(pixels // channels), math.isqrt(max(tokens - 1, 0))
    if channels * patch**2 != pixels or side**2 + 1 != tokens:
        raise LoadError(
            f"expected square patches of {channels} channels and a square of them; got {pixels} numbers in a patch and "
            f"{tokens} tokens: pass channels="
        )
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.layers.")})
    published = [size["heads"] for size in CRATE_SIZES.values() if (size["width"], size["layers"]) == (width, layers)]
    if not published and "heads" not in others:
        raise LoadError(f"no published CRATE has width {width} and {layers} layers: pass heads=")
    told = {
        "image_size": side * patch,
        "patch_size": patch,
        "channels": channels,
        "classes": state["mlp_head.1.bias"].numel(),
        "width": width,
        "layers": layers,
        "heads": (published or [0])[0],
    }
    pixel_norm = {"pixel_mean": IMAGENET_MEAN, "pixel_spread": IMAGENET_SPREAD} if channels == 3 else {}
    return CrateConfig(**{**told, **pixel_norm, **others})
