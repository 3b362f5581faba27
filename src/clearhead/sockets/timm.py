"""The sockets of timm's attention classes, fused or not, keyed by file and class: many there are "Attention"."""

from typing import Any

from torch import Tensor, nn

from clearhead.sockets.described import AttentionSpec

__all__ = ["TIMM_CLASSES"]


def _swin_bias(module: nn.Module, arguments: dict[str, Any]) -> Tensor:
    """Relative position bias of a window, with the mask of shifted windows repeated for every image of the batch."""
    bias: Tensor = module._get_rel_pos_bias()  # type: ignore[operator]
    mask = arguments.get("mask")
    if mask is None:
        return bias
    images = arguments["x"].shape[0] // mask.shape[0]
    shifted: Tensor = mask.repeat(images, 1, 1).unsqueeze(1)
    return bias + shifted


TIMM_CLASSES = (
    AttentionSpec(
        module="timm.layers.attention.Attention",
        q="q_norm", k="k_norm", v="qkv[2]", out="norm", mask="attn_mask", causal="is_causal", socket="timm class",
    ),
    AttentionSpec(
        module="timm.models.swin_transformer.WindowAttention",
        q="qkv[0]", k="qkv[1]", v="qkv[2]", out="proj", bias=_swin_bias, socket="timm class",
    ),
)  # fmt: skip
"""Classes described by hand. timm's others are seen through torch's fused kernel where they call it."""
