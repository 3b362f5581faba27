"""Conversion from and to the weights of the authors' CRATE code (github.com/Ma-Lab-Berkeley/CRATE, model/crate.py).

Their file is a dictionary of tensors, or a checkpoint with one under "state_dict"; names start with "module." if the
training ran on several devices. The file contains neither the number of heads nor the pixel normalisation.
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
from clearhead.loading.objects import LoadError, first_line
from clearhead_lab.models.crate import CRATE_SIZES, Crate, CrateConfig
from clearhead_lab.models.image_sizes import check_sizes

IMAGENET_MEAN, IMAGENET_SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Normalisation of red, green and blue in the authors' training script."""

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


def crate_from_released(source: str | Path | Mapping[str, Any], **settings: Any) -> Crate:
    """Return the model of weights that the authors' code saved, in evaluation mode and single precision.

    source: a file (.safetensors, or one that torch.load reads with weights_only), or its content
    settings: fields of `CrateConfig` that do not follow from shapes. `heads` is needed unless width and layers are
        those of a published size. `channels` is 3 by default. Three channels are normalised as the authors do, other
        numbers of channels by 0.5. Step and penalty are the authors'.

    The model takes images from 0 to 1 and normalises them itself: pass images as they are before the authors'
    `Normalize`. Raise LoadError if a name or shape is missing, different or unknown.
    """
    state = _plain_state(_read(Path(source)) if isinstance(source, str | Path) else source)
    config = _config_from(state, settings)
    with torch.device("meta"):  # only for its names and shapes
        names = released_names(empty := Crate(config))
    shapes = {names[name]: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    missing, unknown = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    if missing or unknown:
        groups = (("missing", missing), ("unknown", unknown))
        differences = "; ".join(f"{what}: {', '.join(names)}" for what, names in groups if names)
        raise LoadError(f"these are not weights of the released CRATE code. {differences}")
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise LoadError(f"expected {name} {shape}; got {tuple(state[name].shape)}")
    model = Crate(config, generator=torch.Generator().manual_seed(0))
    model.load_state_dict({ours: state[theirs] for ours, theirs in names.items()})
    return model.eval()


def released_names(model: Crate) -> dict[str, str]:
    """Return the authors' name of each weight. Raise InputError for a form that the released code does not have."""
    names = {}
    for name in model.state_dict():
        parts = name.split(".")
        known, before = (_OUTSIDE, "") if parts[0] != "blocks" else (_INSIDE, f"transformer.layers.{parts[1]}.")
        rest = parts if not before else parts[2:]
        lengths = [length for length in (len(rest), len(rest) - 1) if ".".join(rest[:length]) in known]
        if not lengths:
            raise InputError(f"the released code has no weight for {name}; it has only the form 'released'")
        names[name] = before + ".".join([known[".".join(rest[: lengths[0]])], *rest[lengths[0] :]])
    required = {f"blocks.{i}.attention.out.bias" for i in range(len(model.blocks))}
    if not required <= names.keys():
        raise InputError(f"the released code needs {min(required - names.keys())}, which this form does not have")
    return names


def released_state(model: Crate) -> dict[str, Tensor]:
    """Return the model's weights, not copied, under the authors' names, for their `load_state_dict`."""
    state = model.state_dict()
    return {theirs: state[ours] for ours, theirs in released_names(model).items()}


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise LoadError(f"there is no file {path}; give the file that the authors' code saved") from None
    except pickle.UnpicklingError:
        raise LoadError(
            f"{path} contains more than tensors, and loading it could run code; save its tensors alone"
        ) from None
    except Exception as error:  # torch raises errors of many classes for files of other formats
        raise LoadError(f"cannot read {path}: {first_line(error)}") from None


def _plain_state(content: Any) -> dict[str, Tensor]:
    """Return the tensors by name, from a checkpoint if it is one, without the prefix "module."."""
    state = content["state_dict"] if isinstance(content, Mapping) and "state_dict" in content else content
    if not (
        isinstance(state, Mapping)
        and state
        and all(isinstance(name, str) and isinstance(x, Tensor) for name, x in state.items())
    ):
        raise LoadError('expected tensors by name, or a checkpoint with them under "state_dict"')
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in state)
    return {name.removeprefix(prefix) if wrapped else name: x for name, x in state.items()}


def _config_from(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> CrateConfig:
    """Return the config that follows from the shapes and from `settings`."""
    needed = ("pos_embedding", "to_patch_embedding.1.weight", "mlp_head.1.bias")
    missing = [name for name in needed if name not in state]
    if missing:
        raise LoadError(f"these are not weights of the released CRATE code. missing: {', '.join(missing)}")
    positions, pixels = state["pos_embedding"], state["to_patch_embedding.1.weight"].numel()
    tokens, width = positions.shape[-2:] if positions.ndim >= 2 else (0, 0)
    channels = settings.get("channels", 3)
    check_sizes(channels=channels)
    patch, side = math.isqrt(pixels // channels), math.isqrt(max(tokens - 1, 0))
    if channels * patch**2 != pixels or side**2 + 1 != tokens:
        raise LoadError(
            f"expected square patches of {channels} channels and a square number of them; got {pixels} numbers per "
            f"patch and {tokens} tokens: pass channels="
        )
    layers = len({name.split(".")[2] for name in state if name.startswith("transformer.layers.")})
    published = [size["heads"] for size in CRATE_SIZES.values() if (size["width"], size["layers"]) == (width, layers)]
    if not published and "heads" not in settings:
        raise LoadError(f"no published CRATE has width {width} and {layers} layers: pass heads=")
    inferred = {
        "image_size": side * patch,
        "patch_size": patch,
        "channels": channels,
        "classes": state["mlp_head.1.bias"].numel(),
        "width": width,
        "layers": layers,
        "heads": (published or [0])[0],
    }
    pixel_norm = {"pixel_mean": IMAGENET_MEAN, "pixel_spread": IMAGENET_SPREAD} if channels == 3 else {}
    return CrateConfig(**{**inferred, **pixel_norm, **settings})
