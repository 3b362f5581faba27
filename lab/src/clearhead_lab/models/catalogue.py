"""Named models: DeiT's sizes, the language models and Segmenters of the kernel-PCA paper, and small ones for a laptop.

DeiT: Touvron et al. 2021 (arXiv 2012.12877). Names that end in -symmetric and -rpc are the variants of Teo and Nguyen
2024 (arXiv 2406.13762): symmetric attention, and RPC-Attention in the first layers with symmetric attention elsewhere.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clearhead.errors import InputError
from clearhead.operators.named import OPERATORS, RPC, Softmax, Symmetric, operator_from_dict
from clearhead_lab.models.language import LanguageModel, LanguageModelConfig
from clearhead_lab.models.segmenter import Segmenter, SegmenterConfig
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig

Operators = Callable[[int], Any]
"""A function that returns the attention of a config for a number of layers."""


def _all(operator: Any) -> Operators:
    return lambda layers: operator


def _first(operator: Any, count: int = 1) -> Operators:
    """Use the operator in the first layers and symmetric attention in the others, as published."""
    return lambda layers: (*(operator,) * min(count, layers), *(Symmetric(),) * (layers - count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A named model.

    meaning: where it is from
    model, config: its class, and the class of its settings
    settings: the settings, without attention
    attention: the operators of the layers; of a Segmenter, of encoder and decoder
    """

    meaning: str
    model: type[nn.Module]
    config: type[Any]
    settings: Mapping[str, Any] = field(repr=False)
    attention: Operators


IMAGENET = {
    "image_size": 224, "patch_size": 16, "channels": 3, "classes": 1000, "layers": 12, "drop_path": 0.1,
    "norm_eps": 1e-6, "pixel_mean": (0.485, 0.456, 0.406), "pixel_spread": (0.229, 0.224, 0.225),
}  # fmt: skip
DEIT = {
    "tiny": {**IMAGENET, "width": 192, "heads": 3, "mlp_width": 768},
    "small": {**IMAGENET, "width": 384, "heads": 6, "mlp_width": 1536},
    "base": {**IMAGENET, "width": 768, "heads": 12, "mlp_width": 3072},
}
PAPER_LANGUAGE = {
    "vocabulary": 267_735, "context": 256, "width": 128, "layers": 16, "heads": 8, "mlp_width": 2048, "dropout": 0.1,
    "output": "adaptive", "cutoffs": (20_000, 40_000, 200_000), "tail_divisor": 1.0,
}  # fmt: skip
SMALL_LANGUAGE = {
    "vocabulary": 33_278, "context": 256, "width": 256, "layers": 4, "heads": 8, "mlp_width": 1024, "dropout": 0.2,
    "output": "adaptive", "cutoffs": (2_000, 10_000),
}  # fmt: skip
CIFAR = {
    "image_size": 32, "patch_size": 4, "channels": 3, "classes": 10, "width": 128, "layers": 6, "heads": 4,
    "mlp_width": 256, "stem": "convolution", "pixel_mean": (0.491, 0.482, 0.447), "pixel_spread": (0.247, 0.243, 0.262),
}  # fmt: skip
ADE20K = {**DEIT["tiny"], "image_size": 512, "classes": 150, "decoder_layers": 2, "mask_head": "layer-norm"}
PETS = {
    **CIFAR, "image_size": 64, "patch_size": 8, "classes": 3, "decoder_layers": 1,
    "pixel_mean": (0.485, 0.456, 0.406), "pixel_spread": (0.229, 0.224, 0.225),
}  # fmt: skip
VIT: dict[str, Any] = {"model": VisionTransformer, "config": VisionTransformerConfig}
TEXT: dict[str, Any] = {"model": LanguageModel, "config": LanguageModelConfig}
MASKS: dict[str, Any] = {"model": Segmenter, "config": SegmenterConfig}


def _rpc(iterations: int, strength: float = 4.0) -> RPC:
    return RPC(iterations=iterations, strength=strength)


FIRST = _first(_rpc(4)), "4 iterations in layer 0"
ALL = _all(_rpc(2, 3.0)), "2 iterations in all layers"


def _variants(name: str, meaning: str, rpc: tuple[Operators, str], **entry: Any) -> dict[str, Entry]:
    """Return the model with softmax attention, its symmetric variant, and its RPC variant with a description."""
    operators, where = rpc
    return {
        name: Entry(meaning=meaning, attention=_all(Softmax()), **entry),
        f"{name}-symmetric": Entry(meaning=f"{meaning}; queries are keys", attention=_all(Symmetric()), **entry),
        f"{name}-rpc": Entry(meaning=f"{meaning}; RPC, {where}, symmetric elsewhere", attention=operators, **entry),
    }


CATALOGUE: dict[str, Entry] = {
    **_variants("deit-tiny", "DeiT-tiny", (_first(_rpc(6)), "6 iterations in layer 0"), settings=DEIT["tiny"], **VIT),
    "deit-tiny-rpc-all": Entry(meaning=f"DeiT-tiny; RPC, {ALL[1]}", attention=ALL[0], settings=DEIT["tiny"], **VIT),
    **_variants(
        "deit-small", "DeiT-small", (_first(_rpc(6)), "6 iterations in layer 0"), settings=DEIT["small"], **VIT
    ),
    **_variants("deit-base", "DeiT-base", (_first(_rpc(6)), "6 iterations in layer 0"), settings=DEIT["base"], **VIT),
    "deit-base-rpc-all": Entry(meaning=f"DeiT-base; RPC, {ALL[1]}", attention=ALL[0], settings=DEIT["base"], **VIT),
    **_variants("vit-cifar", "small, for CIFAR-10", FIRST, settings=CIFAR, **VIT),
    **_variants(
        "language-paper",
        "the paper's, for WikiText-103",
        (_first(_rpc(4), 4), "4 iterations in layers 0 to 3"),
        settings=PAPER_LANGUAGE,
        **TEXT,
    ),
    **_variants("language-small", "small, for WikiText-2", FIRST, settings=SMALL_LANGUAGE, **TEXT),
    **_variants("segmenter-tiny", "DeiT-tiny encoder, for ADE20K", FIRST, settings=ADE20K, **MASKS),
    **_variants("segmenter-pets", "small, for Oxford Pets", FIRST, settings=PETS, **MASKS),
}
"""Every named model."""


def config_of(name: str, **overrides: Any) -> Any:
    """Return the config of a named model, with settings replaced by `overrides`. Raise InputError for unknown names.

    attention, decoder_attention: an operator of `OPERATORS`, its name, or its settings as
        `operator_from_dict` reads them, for all layers; or a sequence with one for each layer
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise InputError(f"there is no model {name!r}{_nearest(name, CATALOGUE)}; choose from {', '.join(CATALOGUE)}")
    known = [setting.name for setting in dataclasses.fields(entry.config) if setting.init]
    for unknown in overrides.keys() - set(known):
        raise InputError(f"{name} has no setting {unknown!r}{_nearest(unknown, known)}; it has {', '.join(known)}")
    settings = {**entry.settings, **overrides}
    for attention, layers in (("attention", "layers"), ("decoder_attention", "decoder_layers")):
        if attention in overrides:
            settings[attention] = _operators(overrides[attention])
        elif attention in known and isinstance(settings[layers], int):  # else the config raises an error
            settings[attention] = entry.attention(settings[layers])
    return entry.config(**settings)


def build(name: str, *, generator: torch.Generator | None = None, **overrides: Any) -> nn.Module:
    """Return a named model with random weights drawn from the generator. overrides: as in `config_of`."""
    config = config_of(name, **overrides)
    model: nn.Module = CATALOGUE[name].model(config, generator=generator)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model.

    parameters: number of parameters
    multiply_adds: multiply-adds of linear maps, convolutions and attention in a forward pass of one input: an image, or
        a sequence as long as the context. Every iteration of RPC-Attention counts; causal and symmetric attention count
        all pairs of tokens, whether or not the compiled kernel leaves some out.
    """

    parameters: int
    multiply_adds: int


def measure_size(name: str, **overrides: Any) -> ModelSize:
    """Return the size of a named model. It is built on the meta device, so that it takes no memory."""
    with torch.device("meta"):
        model = build(name, **overrides).eval()
        inputs = one_input(model.config)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(inputs)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(parameters=parameters, multiply_adds=counter.get_total_flops() // 2)


def one_input(config: Any) -> Tensor:
    """Return one sequence as long as the context, or one image, of zeros on the present device."""
    if hasattr(config, "context"):
        return torch.zeros(1, config.context, dtype=torch.long)
    return torch.zeros(1, config.channels, config.image_size, config.image_size)


def _operators(given: Any) -> Any:
    if isinstance(given, str) and given in OPERATORS:
        return operator_from_dict({"operator": given})
    if isinstance(given, Mapping):
        return operator_from_dict(given)
    return tuple(map(_operators, given)) if isinstance(given, list | tuple) else given


def _nearest(unknown: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(unknown, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
