"""Cross-attention, as far as modules and their names tell."""

import re

from torch import nn

__all__ = ["is_cross_attention"]

_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def is_cross_attention(module: nn.Module, *names: str) -> bool:
    """Return whether the module, or one of its names, says that its keys come from another sequence."""
    return getattr(module, "is_cross_attention", False) is True or any(_CROSS.search(name) for name in names)
