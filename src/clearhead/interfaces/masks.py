"""Attention masks of models, as a boolean mask and a bias."""

import torch
from torch import Tensor

from clearhead.interfaces.call import AttentionNotSeenError

HIDING = 1000.0
"""A score this far below the largest of its row has no weight in any precision."""


def causal_mask(n: int, m: int, device: torch.device) -> Tensor:
    """Return the mask of n queries over m keys in which query i sees keys 0 to i, as in torch's kernel."""
    return torch.ones(1, 1, n, m, dtype=torch.bool, device=device).tril()


def split_mask(added: object) -> tuple[Tensor | None, Tensor | None]:
    """Split a model's attention mask into (mask, bias): what hides keys, and what shifts scores.

    A boolean mask is True where a query may attend. A floating mask is added to the scores: an entry hides its key if
    it is at most half of the dtype's most negative number, or `HIDING` below the largest of its row (models also write
    -10000 and -1e9). The rest is a bias, or None if it is zero throughout.
    """
    if added is None:
        return None, None
    if not isinstance(added, Tensor):
        raise AttentionNotSeenError(
            f"a mask of type {type(added).__name__} cannot be read; choose sdpa or eager attention"
        )
    if added.dtype is torch.bool:
        return added, None
    hidden = added <= torch.finfo(added.dtype).min / 2
    if added.shape[-1] > 1:
        hidden |= added <= added.amax(dim=-1, keepdim=True) - HIDING
    rest = added.masked_fill(hidden, 0)
    mask = ~hidden if bool(hidden.any()) else None
    return mask, rest if bool(rest.any()) else None
