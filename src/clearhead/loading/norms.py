"""The learned values of a model's normalisation layers, and their use in another model of the same architecture."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.errors import InputError

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
"""Normalisation layers of PyTorch; others are recognised by the name of their class, such as LlamaRMSNorm."""
BUFFERS = ("weight", "bias", "running_mean", "running_var")
"""Buffers that a normalisation layer learns; frozen batch norms keep their gain and bias in buffers."""


def norm_values(model: nn.Module) -> dict[str, Tensor]:
    """Return gains, biases and running statistics of all normalisation layers by name: the tensors of the model.

    A layer counts if it is one of PyTorch's, or if the name of its class has "norm" in it and its own parameters are
    vectors, as in transformers and timm.
    """
    return {
        f"{name}.{key}" if name else key: value
        for name, module in model.named_modules()
        for key, value in _learned(module).items()
    }


def _learned(module: nn.Module) -> dict[str, Tensor]:
    values = dict(module.named_parameters(recurse=False))
    named = "norm" in type(module).__name__.lower() and all(value.ndim <= 1 for value in values.values())
    if not named and not isinstance(module, NORMS):
        return {}
    return {**values, **{key: x for key, x in module.named_buffers(recurse=False) if key in BUFFERS}}


def has_norms(model: nn.Module, values: Mapping[str, Tensor]) -> bool:
    """Return whether the model's normalisation layers already have these values.

    Raise InputError if the model lacks one of them, or has it in another shape.
    """
    own = norm_values(model)
    for name, value in values.items():
        if name not in own or own[name].shape != value.shape:
            raise InputError(
                f"the baseline has no normalisation {name} of shape {tuple(value.shape)}, which the model has; "
                "give a model of the same architecture"
            )
    return all(torch.equal(own[name], value.to(own[name])) for name, value in values.items())


@contextmanager
def with_norms(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the model's normalisation layers these values inside the block; restore its own at the end."""
    own = norm_values(model)
    before = {name: own[name].detach().clone() for name in values}
    _write(own, values)
    try:
        yield
    finally:
        _write(own, before)


@torch.inference_mode()  # tensors that were made in this mode can only be written in it
def _write(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        tensors[name].copy_(value)
