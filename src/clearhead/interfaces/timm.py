"""timm's attention classes, fused or not, recognised by file and class: many are called "Attention".

A handler that records reads them by description, so the layer keeps the path it is on. A permanent handler does not
need the layer's own attention, so it is put at torch's fused function, which these classes call if `fused_attn` is set.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from clearhead.interfaces import described, sdpa
from clearhead.interfaces.attachment import Detach, Handler, Interface, Layer
from clearhead.interfaces.descriptions import AttentionSpec

NAME = "timm class"


def _swin_bias(module: nn.Module, arguments: dict[str, Any]) -> Tensor:
    """Return the relative position bias of a window, with the mask of shifted windows repeated for every image."""
    bias: Tensor = module._get_rel_pos_bias()  # type: ignore[operator]
    mask = arguments.get("mask")
    if mask is None:
        return bias
    images = arguments["x"].shape[0] // mask.shape[0]
    shifted: Tensor = mask.repeat(images, 1, 1).unsqueeze(1)
    return bias + shifted


_CLASSES = (
    AttentionSpec(
        module="timm.layers.attention.Attention",
        q="q_norm", k="k_norm", v="qkv[2]", out="norm", mask="attn_mask", causal="is_causal",
    ),
    AttentionSpec(
        module="timm.models.swin_transformer.WindowAttention",
        q="qkv[0]", k="qkv[1]", v="qkv[2]", out="proj", bias=_swin_bias,
    ),
)  # fmt: skip
"""Classes with a description here. Others are intercepted at torch's fused function where they call it."""


def find(model: nn.Module) -> list[Layer]:
    """Return the modules of timm's classes that have a description here."""
    return described.find(model, _CLASSES)


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the layer's attention calls."""
    if handler.permanent:
        return sdpa.attach(replace(layer, interface=sdpa.NAME), handler)
    return described.attach(layer, handler)


INTERFACE = Interface(name=NAME, find=find, attach=attach)
