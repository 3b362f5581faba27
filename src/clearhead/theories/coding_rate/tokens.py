"""The residual stream around one block, for one input and without its padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float, all_finite
from clearhead.theories.example import Example
from clearhead.theories.reason import Reason, ReasonKind
from clearhead.theories.samples import sample_tokens

FEWEST_TOKENS = 4
"""Three tokens have only two cycles in which each gets the addition of another."""
NO_STREAM = Reason(ReasonKind.NOT_FOUND, "the residual stream around this block was not found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The residual stream of one input in float64: before attention, after it, and after the MLP.

    total, between: the sum with attention's output, and what the MLP is added to, which may be its norm
    present: True for these positions, which are not padding; dtype: of the model's tokens
    sampled: whether they are a sample of a long input's
    """

    before: Float[Tensor, "n c"]
    total: Float[Tensor, "n c"]
    between: Float[Tensor, "n c"]
    after: Float[Tensor, "n c"] | None
    present: Bool[Tensor, "t"]
    dtype: torch.dtype
    sampled: bool = False


def tokens_of(example: Example, generator: torch.Generator) -> Tokens | Reason:
    """Return the tokens of an input that some query of some head may attend to, or the reason why they cannot be used.

    The windows of an input are taken together: its residual stream is whole although its attention is not. Of a long
    input some tokens are drawn.
    """
    stream = example.stream
    if stream is None:
        return NO_STREAM
    length = stream.before.shape[1]
    if example.windows == 1 and example.k.shape[-2] != length:
        return Reason(ReasonKind.NOT_COVERED, "attention reads another sequence than it writes to")
    present = example.visible.any(dim=0).cpu() if example.windows == 1 else torch.ones(length, dtype=torch.bool)
    if int(present.sum()) < FEWEST_TOKENS:
        text = f"fewer than {FEWEST_TOKENS} tokens, which have too few ways to exchange additions"
        return Reason(ReasonKind.TOO_SHORT, text)
    all_present, present = present, sample_tokens(present, generator)
    rows = present.nonzero().flatten()

    def of_rows(z: Tensor) -> Tensor:
        z = z[0].detach().cpu()
        return (z if len(rows) == len(z) else z[rows]).double()

    before, total, between = (of_rows(z) for z in (stream.before, stream.total, stream.between))
    after = None if stream.after is None else of_rows(stream.after)
    if not all(z is None or all_finite(z) for z in (before, total, between, after)):
        return Reason(ReasonKind.NOT_FINITE, "the residual stream around this block is not finite")
    if not bool(before.any()):
        return Reason(ReasonKind.UNDEFINED, "all tokens before this block are zero, and have no size to compare with")
    return Tokens(
        before=before,
        total=total,
        between=between,
        after=after,
        present=present,
        dtype=stream.total.dtype,
        sampled=not torch.equal(present, all_present),
    )
