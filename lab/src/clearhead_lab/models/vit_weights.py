"""Weights of timm's and Hugging Face's vision transformers in a `VisionTransformer`, by a mapping of names.

The model takes images from 0 to 1 and normalises them itself; theirs take normalised images. The logits are equal up to
rounding. For images of another size the positions are interpolated. Nothing is downloaded, and neither library is
imported.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.loading.objects import LoadError, first_line
from clearhead.storage import MAX_JSON_BYTES, parse_json, read_bytes
from clearhead_lab.models.image_sizes import interpolate_positions
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig

TIMM_EPS = 1e-6
_TIMM = {
    "class_token": "cls_token", "positions": "pos_embed", "patches": "patch_embed.proj", "norm": "norm", "head": "head",
    "blocks": "blocks", "attention_norm": "norm1", "attention.query": "attn.q", "attention.key": "attn.k",
    "attention.value": "attn.v", "attention.out": "attn.proj", "mlp_norm": "norm2", "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}  # fmt: skip
_HUGGINGFACE = {
    "class_token": "vit.embeddings.cls_token", "positions": "vit.embeddings.position_embeddings",
    "patches": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm", "head": "classifier",
    "blocks": "vit.layers", "attention_norm": "layernorm_before", "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj", "attention.value": "attention.v_proj", "attention.out": "attention.o_proj",
    "mlp_norm": "layernorm_after", "mlp.0": "mlp.fc1", "mlp.2": "mlp.fc2",
}  # fmt: skip
_OLDER = {
    "vit.encoder.layer.": "vit.layers.", ".attention.attention.query.": ".attention.q_proj.",
    ".attention.attention.key.": ".attention.k_proj.", ".attention.attention.value.": ".attention.v_proj.",
    ".attention.output.dense.": ".attention.o_proj.", ".intermediate.dense.": ".mlp.fc1.",
    ".output.dense.": ".mlp.fc2.",
}  # fmt: skip
"""Names in files and in older versions of transformers, and the names that replace them, in this order."""

Numbers = Sequence[float] | None


def vit_from_timm(
    source: nn.Module | Mapping[str, Any],
    *,
    heads: int | None = None,
    pixel_mean: Numbers = None,
    pixel_spread: Numbers = None,
    image_size: int | None = None,
) -> VisionTransformer:
    """Return the vision transformer of a timm model (vit_*, deit_*) or of its state dict, in evaluation mode.

    heads, pixel_mean, pixel_spread: a state dict does not store them, so they are needed with one; those of a model
        follow from it unless given
    image_size: of the images to be classified, by default that of the weights. For another one the positions are
        interpolated as timm does (bicubic, antialiased), for a fine-tuning at that size

    Raise InputError if a name is missing or unknown, or if the model computes something else: a distillation token,
    pooling by the mean, layer scale, norms of queries and keys, another activation.
    """
    state, eps = source, TIMM_EPS
    if isinstance(source, nn.Module):
        model: Any = source
        if not all(hasattr(model, name) for name in ("blocks", "norm", "pretrained_cfg", "global_pool")):
            raise InputError(f"expected a VisionTransformer of timm; got a {type(source).__name__}")
        if model.global_pool != "token":
            raise InputError(f"expected a model that classifies by its class token; got pooling {model.global_pool!r}")
        _check_gelu(repr(getattr(model.blocks[0].mlp, "act", None)), "GELU(approximate='none')")
        heads = model.blocks[0].attn.num_heads if heads is None else heads
        pixel_mean = model.pretrained_cfg["mean"] if pixel_mean is None else pixel_mean
        pixel_spread = model.pretrained_cfg["std"] if pixel_spread is None else pixel_spread
        state, eps = model.state_dict(), getattr(model.norm, "eps", TIMM_EPS)
    tensors = _check_state(state)
    if heads is None:
        raise InputError("a state dict does not store the number of heads: give heads=")
    pixel_norm = (pixel_mean, pixel_spread)
    return _converted(_split_qkv(tensors), _TIMM, heads=heads, eps=eps, pixel_norm=pixel_norm, image_size=image_size)


def vit_from_huggingface(
    source: nn.Module | str | Path,
    *,
    pixel_mean: Numbers = None,
    pixel_spread: Numbers = None,
    image_size: int | None = None,
) -> VisionTransformer:
    """Return the vision transformer of a ViTForImageClassification, or of the folder of one, in evaluation mode.

    pixel_mean, pixel_spread: those of the folder's preprocessor_config.json unless given; needed with a model
    image_size: as in `vit_from_timm`; transformers itself interpolates without antialiasing

    Raise InputError, or LoadError for a folder, if a name is missing or unknown, or if the model computes something
    else: no classifier, projections without a bias, another activation.
    """
    if isinstance(source, nn.Module):
        own: Any = getattr(source, "config", None)
        config = own.to_dict() if hasattr(own, "to_dict") else {}
        state = source.state_dict()
    else:
        folder = Path(source)
        config, state = _read_json(folder / "config.json"), _read_weights(folder / "model.safetensors")
        if pixel_mean is None and pixel_spread is None and (folder / "preprocessor_config.json").exists():
            processor = _read_json(folder / "preprocessor_config.json")
            pixel_mean, pixel_spread = processor.get("image_mean"), processor.get("image_std")
    if config.get("model_type") != "vit":
        raise InputError(f"expected a Hugging Face model of type 'vit'; got {config.get('model_type')!r}")
    _check_gelu(config.get("hidden_act", "gelu"), "gelu")
    heads, eps = config.get("num_attention_heads", 12), config.get("layer_norm_eps", 1e-12)
    renamed = {_newer(name): tensor for name, tensor in _check_state(state).items()}
    pixel_norm = (pixel_mean, pixel_spread)
    return _converted(renamed, _HUGGINGFACE, heads=heads, eps=eps, pixel_norm=pixel_norm, image_size=image_size)


def _converted(
    state: Mapping[str, Tensor],
    names: Mapping[str, str],
    *,
    heads: Any,
    eps: Any,
    pixel_norm: tuple[Any, Any],
    image_size: int | None,
) -> VisionTransformer:
    """Return a model with the weights of a state under the names of another library."""
    mean, spread = pixel_norm
    if mean is None or spread is None:
        raise InputError("the weights do not store how pixels were normalised: give pixel_mean= and pixel_spread=")
    start = f"{names['blocks']}."
    layers = len({name.removeprefix(start).split(".")[0] for name in state if name.startswith(start)} or {"0"})
    theirs = {_their_name(ours, names): ours for ours in _our_names(layers)}
    missing, unknown = sorted(theirs.keys() - state.keys()), sorted(state.keys() - theirs.keys())
    if missing or unknown:
        groups = (("missing", missing), ("unknown", unknown))
        differences = "; ".join(
            f"{what}: {', '.join(listed[:3])}{f' and {len(listed) - 3} more' if len(listed) > 3 else ''}"
            for what, listed in groups
            if listed
        )
        raise InputError(f"these are not the weights of a plain vision transformer. {differences}")
    ours = {name: state[their] for their, name in theirs.items()}
    settings = {"heads": heads, "norm_eps": eps, "pixel_mean": mean, "pixel_spread": spread}
    try:
        config = _config_from(ours, layers, **{**settings, "pixel_mean": tuple(mean), "pixel_spread": tuple(spread)})
    except TypeError as error:
        raise InputError(f"expected numbers as settings; got {settings}: {first_line(error)}") from None
    if image_size is not None:
        config = dataclasses.replace(config, image_size=image_size)
        ours["positions"] = interpolate_positions(ours["positions"], side=image_size // config.patch_size)
    ours["patches.weight"] = ours["patches.weight"].flatten(1)
    with torch.device("meta"):  # sizes that the weights do not have take no memory
        shapes = {name: tuple(tensor.shape) for name, tensor in VisionTransformer(config).state_dict().items()}
    for their, name in theirs.items():
        if tuple(ours[name].shape) != shapes[name]:
            raise InputError(f"expected {their} of shape {shapes[name]}; got {tuple(ours[name].shape)}")
    model = VisionTransformer(config, generator=torch.Generator().manual_seed(0))
    model.load_state_dict(ours)
    return model.to(ours["norm.weight"].dtype).eval()


def _our_names(layers: int) -> list[str]:
    inside = ("attention_norm", "attention.query", "attention.key", "attention.value", "attention.out", "mlp_norm")
    modules = [f"blocks.{layer}.{name}" for layer in range(layers) for name in (*inside, "mlp.0", "mlp.2")]
    mapped = [f"{name}.{part}" for name in ("patches", *modules, "norm", "head") for part in ("weight", "bias")]
    return ["class_token", "positions", *mapped]


def _their_name(ours: str, names: Mapping[str, str]) -> str:
    if ours in names:
        return names[ours]
    module, part = ours.rsplit(".", 1)
    if not module.startswith("blocks."):
        return f"{names[module]}.{part}"
    _, layer, inside = module.split(".", 2)
    return f"{names['blocks']}.{layer}.{names[inside]}.{part}"


def _config_from(weights: Mapping[str, Tensor], layers: int, **settings: Any) -> VisionTransformerConfig:
    """Return the config that follows from the shapes and from `settings`."""
    pixels, positions = tuple(weights["patches.weight"].shape), tuple(weights["positions"].shape)
    tokens = positions[1] if len(positions) == 3 else 0
    side = math.isqrt(max(tokens - 1, 0))
    if len(pixels) != 4 or pixels[2] != pixels[3] or side < 1 or side**2 + 1 != tokens:
        raise InputError(
            "expected square patches, a square number of them and one class token; "
            f"got a map of patches {pixels} and positions {positions}"
        )
    width, channels, patch, _ = pixels
    return VisionTransformerConfig(
        image_size=side * patch,
        patch_size=patch,
        channels=channels,
        classes=len(weights["head.bias"]) if weights["head.bias"].ndim else 0,
        width=width,
        layers=layers,
        mlp_width=len(weights["blocks.0.mlp.0.bias"]) if weights["blocks.0.mlp.0.bias"].ndim else 0,
        **settings,
    )


def _split_qkv(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with a tensor each for the queries, keys and values that timm's models store together."""
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".attn.qkv." in name and tensor.ndim and len(tensor) % 3 == 0:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                split[name.replace(".attn.qkv.", f".attn.{letter}.")] = part
        else:
            split[name] = tensor
    return split


def _newer(name: str) -> str:
    for old, new in _OLDER.items():
        name = name.replace(old, new)
    return name


def _check_gelu(activation: object, expected: str) -> None:
    if activation != expected:
        raise InputError(f"expected the activation {expected}; got {activation}")


def _check_state(state: object) -> Mapping[str, Tensor]:
    if not isinstance(state, Mapping) or not state or not all(isinstance(x, Tensor) for x in state.values()):
        raise InputError(f"expected a model or a state dict with tensors by name; got a {type(state).__name__}")
    return state


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path)
    except FileNotFoundError:
        raise LoadError(f"there is no {path}; give the folder that save_pretrained wrote") from None
    if not isinstance(content, Mapping):
        raise LoadError(f"{path} does not hold the settings of a model")
    return content


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise LoadError(f"there is no {path}; give the folder that save_pretrained wrote, in one file") from None
    except Exception as error:  # safetensors raises errors of many classes for files of other formats
        raise LoadError(f"cannot read {path}: {first_line(error)}") from None
