"""All attention layers of a model, whatever their interface, and one function to attach to any of them."""

from collections.abc import Sequence

from torch import nn

from clearhead.interfaces import described, huggingface, native, sdpa, timm, torch_mha
from clearhead.interfaces.attachment import Detach, Handler, Layer
from clearhead.interfaces.descriptions import AttentionSpec
from clearhead.interfaces.order import forward_order

__all__ = ["INTERFACES", "attach", "find"]

INTERFACES = (
    "the Hugging Face attention interface",
    "timm's attention classes",
    "torch.nn.MultiheadAttention",
    "Clearhead's own modules",
    "torch.nn.functional.scaled_dot_product_attention",
    "descriptions",
)
"""The interfaces as messages list them."""

_ATTACH = {
    described.NAME: described.attach,
    huggingface.NAME: huggingface.attach,
    native.NAME: native.attach,
    sdpa.NAME: sdpa.attach,
    timm.NAME: timm.attach,
    torch_mha.NAME: torch_mha.attach,
}


def attach(layer: Layer, handler: Handler) -> Detach:
    """Put the handler at the layer's attention calls; the call that is returned takes it off."""
    return _ATTACH[layer.interface](layer, handler)


def find(model: nn.Module, describe: Sequence[AttentionSpec] = ()) -> list[Layer]:
    """Return the attention layers of a model in the order in which its forward names them.

    A description comes first. A module that is only known to name torch's fused attention, or only by its class's name,
    counts if no other layer is inside it or around it. Whether it computes attention is known when it runs.
    """
    layers: dict[str, Layer] = {}
    for layer in described.find(model, describe):
        if not any(_inside(layer.path, path) for path in layers):
            layers[layer.path] = layer
    outer = list(layers)
    for interface in (huggingface, torch_mha, native, described, timm):
        for layer in interface.find(model):
            if not any(layer.path == path or _inside(layer.path, path) for path in outer):
                layers.setdefault(layer.path, layer)
    candidates = [layer for layer in sdpa.find(model) if not any(_related(layer.path, path) for path in layers)]
    for layer in candidates:
        if not any(_inside(other.path, layer.path) for other in candidates):
            layers[layer.path] = layer
    return [layers[path] for path, _ in forward_order(model) if path in layers]


def _inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(outer + "."))


def _related(path: str, other: str) -> bool:
    return path == other or _inside(path, other) or _inside(other, path)
