r"""What a step from Z to Z+ does to a coding rate, told apart from what it does to the size of the tokens.

A rate falls when all tokens shrink, and rises when they grow, whatever else happens to them. So a raw change alone says
little: it stands beside the change of unit tokens, the change after Z+ is brought to the size of Z, and the change that
the same growth or shrinking without any attention would have brought.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate, subspace_rates
from clearhead.shapes import Bool, Float, Int, ShapeError

__all__ = ["RateChange", "UnitTokens", "change_of", "rate_change", "scale_matched", "size_ratio", "unit_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTokens:
    """Tokens of length one; a token of zeros stays so, and `zeros` counts them."""

    tokens: Float[Tensor, "*b n d"]
    zeros: Int[Tensor, "*b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """Rate after less rate before, in nats, in each of the ways that the size of tokens is dealt with.

    raw: of the tokens as they are
    unit_norm: of all tokens at length one
    scale_matched: with Z+ times |Z| / |Z+|, so that both have one Frobenius norm
    shrink_null: of Z times |Z+| / |Z|: what the change of size alone does to the raw rate
    zeros: how many tokens, before and after, have no direction
    """

    before: Float[Tensor, "*b"]
    raw: Float[Tensor, "*b"]
    unit_norm: Float[Tensor, "*b"]
    scale_matched: Float[Tensor, "*b"]
    shrink_null: Float[Tensor, "*b"]
    zeros: Int[Tensor, "*b"]

    @property
    def compresses(self) -> Bool[Tensor, "*b"]:
        """Whether the rate falls both at unit norm and at one scale; a fall in one of them only is no compression."""
        return (self.unit_norm < 0) & (self.scale_matched < 0)

    @property
    def agree(self) -> Bool[Tensor, "*b"]:
        """Whether both have one sign; where they have not, the step is neither compression nor its opposite."""
        return self.unit_norm.sign() == self.scale_matched.sign()


def unit_tokens(z: Float[Tensor, "*b n d"]) -> UnitTokens:
    """Every token over its length, in single precision at least."""
    wide = _wide(z)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    none = length == 0
    return UnitTokens(tokens=wide / length.masked_fill(none, 1), zeros=none.sum(dim=(-2, -1)))


def size_ratio(before: Float[Tensor, "*b n d"], after: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b"]:
    """|Z+| / |Z| in Frobenius norms; one where Z is zero, which no factor brings to any size."""
    first, second = (torch.linalg.vector_norm(z.double(), dim=(-2, -1)) for z in (before, after))
    return torch.where(first > 0, second / first.masked_fill(first == 0, 1), 1)


def scale_matched(before: Float[Tensor, "*b n d"], after: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Z+ times |Z| / |Z+|, in single precision at least; Z+ as it is where it is zero."""
    wide = _wide(after)
    return wide * size_ratio(after, before).to(wide.dtype)[..., None, None]


def rate_change(
    before: Float[Tensor, "*b n d"],
    after: Float[Tensor, "*b n d"],
    *,
    bases: Float[Tensor, "k d p"] | None = None,
    eps: float = 0.5,
) -> RateChange:
    """The change of R^c(Z | U) in these subspaces, or of R(Z) without any."""
    if bases is None:
        return change_of(before, after, rate=lambda z: coding_rate(z, eps=eps))
    return change_of(before, after, rate=lambda z: subspace_rates(z, bases, eps=eps).sum(dim=-1))


def change_of(
    before: Float[Tensor, "*b n d"], after: Float[Tensor, "*b n d"], *, rate: Callable[[Tensor], Tensor]
) -> RateChange:
    """The change of any rate of tokens, such as one that projects them in its own way."""
    if before.shape != after.shape or before.ndim < 2:
        raise ShapeError(f"expected tokens of one shape (..., n, d); got {tuple(before.shape)}, {tuple(after.shape)}")
    unit = unit_tokens(before), unit_tokens(after)
    first = rate(before)
    return RateChange(
        before=first,
        raw=rate(after) - first,
        unit_norm=rate(unit[1].tokens) - rate(unit[0].tokens),
        scale_matched=rate(scale_matched(before, after)) - first,
        shrink_null=rate(_wide(before) * size_ratio(before, after).to(first.dtype)[..., None, None]) - first,
        zeros=unit[0].zeros + unit[1].zeros,
    )


def _wide(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))
