"""One attention call: what a layer passes to its attention, and the layer's own output."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.shapes import Bool, Float


class AttentionNotSeenError(InputError):
    """Attention that could not be seen. The message lists what was tried and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The operands of one attention call, with any number of axes before (n, d): mostly (b, h, n, d).

    name, module: path of the module that makes the call, and the module
    interface: the way in which the model exposes it
    mask: True where a query may attend to a key
    bias: finite term added to the scaled scores
    groups: number of query heads that share one key head; keys and values are already repeated
    causal: whether query i is at the position of a key and attends to the keys up to it
    cross: whether keys and values come from another sequence than the queries
    window: largest number of keys a query attends to, where the layer has a sliding window
    weights: None unless the caller wants the attention weights too; a handler that replaces the layer's own attention
        then adds them, (..., n, m)
    projection: weight of the output projection, if the model shows the attention's output only after it
    folded: number of heads within the last axis before n (1 if no axis holds heads); None if that axis holds the heads
    windows_last: whether windows are between the heads and n, (b, heads, windows, n, d)
    """

    name: str
    module: nn.Module
    interface: str
    q: Float[Tensor, "*b n d"]
    k: Float[Tensor, "*b m d"]
    v: Float[Tensor, "*b m e"]
    scale: float
    mask: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, "h"] | None = None
    dropout: float = 0.0
    groups: int = 1
    causal: bool = False
    cross: bool = False
    window: int | None = None
    folded: int | None = None
    windows_last: bool = False
    weights: list[Tensor] | None = None
    projection: Float[Tensor, "c he"] | None = None


class Original:
    """The layer's own attention output, computed when called, and at most once.

    output: that output in the layout of the call, None before it is computed
    model_output: the tensor that the layer itself returns, which that output is part of or becomes part of
    """

    def __init__(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self._compute = compute
        self.output: Tensor | None = None
        self.model_output: Tensor | None = None

    def __call__(self) -> Tensor:
        """Return the output."""
        if self.output is None:
            self.output, self.model_output = self._compute()
        return self.output


_CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def is_cross_attention(module: nn.Module, *names: str) -> bool:
    """Return whether the module, or one of its names, says that its keys come from another sequence."""
    return getattr(module, "is_cross_attention", False) is True or any(_CROSS.search(name) for name in names)


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
