"""Operators under names of transformers' attention interface, for all layers of a model at once."""

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from clearhead._swap.operator import apply_operator
from clearhead.errors import InputError
from clearhead.interfaces.call import is_cross_attention
from clearhead.interfaces.huggingface import read_call, wants_weights
from clearhead.operators.named import OPERATORS, operator_from_dict
from clearhead.operators.requirements import requirements_of

PREFIX = "clearhead-"
"""The start of the names of our attention functions. A file that contains one is trusted no more than any other."""


def register_huggingface() -> tuple[str, ...]:
    """Register every operator that has a name and no parameters with transformers, for example `clearhead-symmetric`.

    `model.set_attn_implementation("clearhead-symmetric")` then uses it in all layers of a model that ask the attention
    interface, with its own defaults; an operator that has a setting without default is left out. Masks are built as for
    sdpa. Return the names.
    """
    names = []
    for name, kind in OPERATORS.usable().items():
        required = (field for field in dataclasses.fields(kind) if field.init and _has_no_default(field))
        if not hasattr(kind, "build") and not any(required):
            names.append(PREFIX + name)
            _register(PREFIX + name, partial(_attend, operator_from_dict({"operator": name})))
    return tuple(names)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _register(name: str, function: Callable[..., Any]) -> None:
    try:
        utilities: Any = importlib.import_module("transformers.modeling_utils")
        masks: Any = importlib.import_module("transformers.masking_utils")
    except ImportError:
        raise InputError("Hugging Face models need transformers: pip install 'clearhead[hf]'") from None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise InputError("torchvision does not fit this torch: uninstall it, or install the one that does") from error
    utilities.AttentionInterface.register(name, function)
    masks.AttentionMaskInterface.register(name, masks.sdpa_mask)  # without it, no mask arrives at all


def _attend(
    operator: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    name = type(module).__name__
    # BART has one class for all: an attention in a decoder that is not causal attends to the encoder.
    in_decoder = bool(getattr(module, "is_decoder", False)) and not getattr(module, "is_causal", True)
    arguments = {"query": query, "key": key, "value": value, "attention_mask": attention_mask, **options}
    cross = in_decoder or is_cross_attention(module, name)
    call = read_call(module, arguments, name=name, cross=cross, rebuilds_causality=True)
    if wants_weights(arguments):
        call = replace(call, weights=[])
    out = apply_operator(operator, requirements_of(operator), call)
    return out.transpose(1, 2).contiguous(), call.weights[0] if call.weights else None
