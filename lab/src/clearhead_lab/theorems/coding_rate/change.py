r"""The change of a coding rate in a step from Z to Z+, separated from the change of the tokens' size.

A rate falls if all tokens shrink and rises if they grow, whatever else happens to them. So the raw change alone says
little. `rate_change` returns it together with the change for tokens of length one, the change after Z+ is scaled to
the size of Z, and the change that the same scaling without attention would cause.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.coding_rate import coding_rate, subspace_rates
from clearhead.shapes import Float, Int, ShapeError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTokens:
    """Tokens of length one; zero tokens stay zero, and `zeros` counts them."""

    tokens: Float[Tensor, "*b n d"]
    zeros: Int[Tensor, "*b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """Rate after minus rate before, in nats, for each way of treating the tokens' size.

    before: the rate of Z
    raw: change for the tokens as they are
    unit_norm: change for all tokens at length one
    scale_matched: change with Z+ |Z| / |Z+| for Z+, which has the Frobenius norm of Z
    shrink_null: change with Z |Z+| / |Z| for Z+: what the change of size alone does to the raw rate
    zeros: number of zero tokens before and after
    """

    before: Float[Tensor, "*b"]
    raw: Float[Tensor, "*b"]
    unit_norm: Float[Tensor, "*b"]
    scale_matched: Float[Tensor, "*b"]
    shrink_null: Float[Tensor, "*b"]
    zeros: Int[Tensor, "*b"]


def unit_tokens(z: Float[Tensor, "*b n d"]) -> UnitTokens:
    """Divide every token by its length, in at least single precision."""
    z = _at_least_float32(z)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    is_zero = length == 0
    return UnitTokens(tokens=z / length.masked_fill(is_zero, 1), zeros=is_zero.sum(dim=(-2, -1)))


def size_ratio(before: Float[Tensor, "*b n d"], after: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b"]:
    """Return |Z+| / |Z| in Frobenius norms; 1 where Z is zero, which no factor can scale."""
    first, second = (torch.linalg.vector_norm(z.double(), dim=(-2, -1)) for z in (before, after))
    return torch.where(first > 0, second / first.masked_fill(first == 0, 1), 1)


def scale_matched(before: Float[Tensor, "*b n d"], after: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return Z+ |Z| / |Z+| in at least single precision; Z+ unchanged where it is zero."""
    after = _at_least_float32(after)
    return after * size_ratio(after, before).to(after.dtype)[..., None, None]


def rate_change(
    before: Float[Tensor, "*b n d"],
    after: Float[Tensor, "*b n d"],
    *,
    bases: Float[Tensor, "k d p"] | None = None,
    eps: float = 0.5,
) -> RateChange:
    """Return the change of R^c(Z | U) for the subspaces `bases`, or of R(Z) without them."""
    if before.shape != after.shape or before.ndim < 2:
        raise ShapeError(
            f"expected before and after of the same shape (..., n, d); got {tuple(before.shape)}, {tuple(after.shape)}"
        )

    def rate(z: Tensor) -> Tensor:
        return coding_rate(z, eps=eps) if bases is None else subspace_rates(z, bases, eps=eps).sum(dim=-1)

    unit_before, unit_after = unit_tokens(before), unit_tokens(after)
    rate_before = rate(before)
    resized = _at_least_float32(before) * size_ratio(before, after).to(rate_before.dtype)[..., None, None]
    return RateChange(
        before=rate_before,
        raw=rate(after) - rate_before,
        unit_norm=rate(unit_after.tokens) - rate(unit_before.tokens),
        scale_matched=rate(scale_matched(before, after)) - rate_before,
        shrink_null=rate(resized) - rate_before,
        zeros=unit_before.zeros + unit_after.zeros,
    )


def _at_least_float32(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))
