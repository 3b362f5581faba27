"""The door of Hugging Face layers, and the names under which all of a model's layers can be asked to use an operator.

A swapped layer gets a copy of its config that names our function. The model's own config stays as it is, and with it
the masks that the model builds and every other layer. The function finds its operator on the module that calls it.
"""

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.drop_in import DROP_INS
from clearhead.operators.placing import traits_of
from clearhead.sockets.answering import answer
from clearhead.sockets.call import Call
from clearhead.sockets.huggingface import OWN_CONFIG, read_call, writes_masks_out
from clearhead.sockets.places import crosses, place_of

__all__ = ["PREFIX", "HuggingFaceDoor", "register_huggingface"]

PREFIX = "clearhead-"
"""What the names of our attention functions begin with. A file that names one is not trusted more than any other."""

_SWAPPED = f"{PREFIX}swapped"
_IMPLEMENTATION = "_attn_implementation_internal"


class HuggingFaceDoor:
    """Lead one layer's question to our function, by a config of its own."""

    shows: ClassVar[bool] = False

    def open(self, module: nn.Module) -> None:
        """Give the module a copy of its config under our name."""
        own: Any = module.config
        chosen = own._attn_implementation
        if chosen not in (None, "eager", "sdpa"):
            raise InputError(
                f"the model's attention is {chosen!r}, whose masks cannot be read: "
                'call model.set_attn_implementation("sdpa") before the swap'
            )
        _register(_SWAPPED, _swapped)
        place = place_of(module)
        assert place is not None
        place.cross = crosses(module, *place.name.split(".")[-2:])
        config = copy.copy(own)
        # Past the property of that name, which would reach into the parts that both configs share.
        config.__dict__[_IMPLEMENTATION] = _SWAPPED
        config.__dict__[OWN_CONFIG] = own
        module.config = config

    def close(self, module: nn.Module) -> None:
        """Give the module its own config back."""
        module.config = getattr(module.config, OWN_CONFIG)

    def __reduce__(self) -> tuple[Callable[[], "HuggingFaceDoor"], tuple[()]]:
        """A model that was saved whole finds our function in a process that has swapped nothing yet."""
        return _registered_door, ()


def _registered_door() -> HuggingFaceDoor:
    _register(_SWAPPED, _swapped)
    return HuggingFaceDoor()


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
        raise InputError("Hugging Face models need transformers: pip install 'clearhead[hf]'") from None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise InputError("torchvision does not fit this torch: call clearhead.ensure_torchvision() first") from error
    utilities.AttentionInterface.register(name, function)
    masks.AttentionMaskInterface.register(name, masks.sdpa_mask)  # without it, no mask arrives at all


def _swapped(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **more: Any
) -> tuple[Tensor, None]:
    place = place_of(module)
    if place is None:
        raise InputError(
            "this layer's config names a swap that is not there: swap models, and do not copy such a config"
        )
    call = _read(module, place.name, query, key, value, attention_mask, more)
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
    # Bart's kind has one class for all: what stands in a decoder and is not causal looks at the encoder.
    in_decoder = bool(getattr(module, "is_decoder", False)) and not getattr(module, "is_causal", True)
    call = _read(module, name, query, key, value, attention_mask, more)
    call = replace(call, cross=in_decoder or crosses(module, name))
    return answer(operator, traits_of(operator), call, name).transpose(1, 2).contiguous(), None


def _read(
    module: nn.Module, name: str, query: Tensor, key: Tensor, value: Tensor, mask: Any, more: dict[str, Any]
) -> Call:
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 4):
        raise InputError(f"{name}: its mask cannot be read: call model.set_attn_implementation('sdpa'), or 'eager'")
    if more.get("cache") is not None:
        raise InputError(f"{name}: paged caches (continuous batching) are not served: generate without them")
    arguments = {"query": query, "key": key, "value": value, "attention_mask": mask, **more}
    return read_call(module, arguments, rebuilds_causality=not writes_masks_out(module))
