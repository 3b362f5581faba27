"""The tokens that a model carries past one block, for one input and without its padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.heads import Heads
from clearhead.shapes import Bool, Float

__all__ = ["FEWEST_TOKENS", "Tokens", "tokens_of"]

FEWEST_TOKENS = 4
"""Three tokens have but two circles in which each could be given the additions of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One input's part of a `Stream`, in float64."""

    before: Float[Tensor, "n c"]
    between: Float[Tensor, "n c"]
    after: Float[Tensor, "n c"] | None

    @property
    def zeros(self) -> int:
        """How many tokens around attention have no length, and so none to be scaled to one."""
        return sum(int((z == 0).all(dim=-1).sum()) for z in (self.before, self.between))


def tokens_of(heads: Heads, index: int) -> Tokens | str:
    """The tokens of one input that some query of some head may look at, or why there are none.

    The windows of an input are one: its stream is whole where its attention is not.
    """
    stream = heads.stream
    if stream is None:
        return "what the model carries past this block was not found"
    inputs, length, _ = stream.before.shape
    if inputs * heads.windows != heads.q.shape[0]:
        return "the stream has other inputs than the attention"
    if heads.windows == 1 and heads.k.shape[-2] != length:
        return "attention reads another sequence than it writes to"
    present = _present(heads, index, length)
    if int(present.sum()) < FEWEST_TOKENS:
        return f"fewer than {FEWEST_TOKENS} tokens, which have too few ways to exchange additions"
    found = Tokens(
        before=_of_input(stream.before, index, present),
        between=_of_input(stream.between, index, present),
        after=None if stream.after is None else _of_input(stream.after, index, present),
    )
    parts = (found.before, found.between, found.after)
    finite = all(z is None or bool(torch.isfinite(z).all()) for z in parts)
    return found if finite else "what the model carries past this block is not finite"


def _present(heads: Heads, index: int, length: int) -> Bool[Tensor, "t"]:
    if heads.mask is None or heads.windows > 1:
        return torch.ones(length, dtype=torch.bool)
    mask = heads.mask[index if heads.mask.shape[0] > 1 else 0]
    return mask.any(dim=-2).any(dim=0).expand(length).cpu()


def _of_input(z: Tensor, index: int, present: Tensor) -> Tensor:
    return z[index].detach().cpu()[present].double()
