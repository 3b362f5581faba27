"""The door of Hugging Face layers, and the names under which all of a model's layers can be asked to use an operator.

A swapped layer gets a copy of its config that names our function. The model's own config stays as it is, and with it
the masks that the model builds and every other layer. The function finds its operator on the module that calls it.
"""

import copy
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from clearhead.operators.drop_in import DROP_INS
from clearhead.operators.placing import traits_of
from clearhead.sockets.answering import answer
from clearhead.sockets.call import Call
from clearhead.sockets.huggingface import OWN_CONFIG, read_call, writes_masks_out
from clearhead.sockets.places import place_of

__all__ = ["PREFIX", "HuggingFaceDoor", "register_huggingface"]

PREFIX = "clearhead-"
"""What the names of our attention functions begin with. A file that names one is not trusted more than any other."""

_SWAPPED = f"{PREFIX}swapped"
_IMPLEMENTATION = "_attn_implementation_internal"
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


class HuggingFaceDoor:
    """Lead one layer's question to our function, by a config of its own."""

    shows: ClassVar[bool] = False

    def open(self, module: nn.Module) -> None:
        """Give the module a copy of its config under our name."""
        own: Any = module.config
        chosen = own._attn_implementation
        if chosen not in (None, "eager", "sdpa"):
            raise ValueError(
                f"the model's attention is {chosen!r}, whose masks cannot be read: "
                'call model.set_attn_implementation("sdpa") before the swap'
            )
        _register(_SWAPPED, _swapped)
        place = place_of(module)
        assert place is not None
        place.cross = bool(_CROSS.search(".".join(place.name.split(".")[-2:])))
        config = copy.copy(own)
        # Past the property of that name, which would reach into the parts that both configs share.
        config.__dict__[_IMPLEMENTATION] = _SWAPPED
        config.__dict__[OWN_CONFIG] = own
        module.config = config

    def close(self, module: nn.Module) -> None:
        """Give the module its own config back."""
        module.config = getattr(module.config, OWN_CONFIG)


def register_huggingface() -> tuple[str, ...]:
    """Register every operator that has a name and no parameters with transformers, as `clearhead-symmetric` say.

    `model.set_attn_implementation("clearhead-symmetric")` then puts it into all layers of a model that ask the
    attention interface, with its own defaults. Masks are built as for sdpa. The names are returned.
    """
    names = []
    for name, kind in DROP_INS.items():
        if not hasattr(kind, "build"):
            names.append(PREFIX + name)
            _register(PREFIX + name, partial(_everywhere, kind()))
    return tuple(names)


def _register(name: str, function: Callable[..., Any]) -> None:
    try:
        utilities: Any = importlib.import_module("transformers.modeling_utils")
        masks: Any = importlib.import_module("transformers.masking_utils")
    except ImportError:
        raise ValueError("Hugging Face models need transformers: pip install 'clearhead[hf]'") from None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise ValueError("torchvision does not fit this torch: call clearhead.ensure_torchvision() first") from error
    utilities.AttentionInterface.register(name, function)
    masks.AttentionMaskInterface.register(name, masks.sdpa_mask)  # without it, no mask arrives at all


def _swapped(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **more: Any
) -> tuple[Tensor, None]:
    place = place_of(module)
    if place is None:
        raise ValueError(
            "this layer's config names a swap that is not there: swap models, and do not copy such a config"
        )
    call = replace(_read(module, place.name, query, key, value, attention_mask, more), cross=place.cross)
    return place.answer(module, call).transpose(1, 2).contiguous(), None


def _everywhere(
    operator: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    name = type(module).__name__
    crosses = "CrossAttention" in name or getattr(module, "is_cross_attention", False)
    call = replace(_read(module, name, query, key, value, attention_mask, more), cross=crosses)
    return answer(operator, traits_of(operator), call, name).transpose(1, 2).contiguous(), None


def _read(
    module: nn.Module, name: str, query: Tensor, key: Tensor, value: Tensor, mask: Any, more: dict[str, Any]
) -> Call:
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 4):
        raise ValueError(f"{name}: its mask cannot be read: call model.set_attn_implementation('sdpa'), or 'eager'")
    if more.get("cache") is not None:
        raise ValueError(f"{name}: paged caches (continuous batching) are not served: generate without them")
    arguments = {"query": query, "key": key, "value": value, "attention_mask": mask, **more}
    return read_call(module, arguments, rebuilds_causality=not writes_masks_out(module))
