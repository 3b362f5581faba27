"""What principal attention pursuit does on its way: every iterate, and how far it is from what it pursues."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.operators.pursuit_options import PRESETS, Pursuit
from clearhead.operators.pursuit_steps import Attending, iterate
from clearhead.operators.rpc import check_rpc
from clearhead.operators.softmax import as_rows
from clearhead.operators.symmetric import checked_scale
from clearhead.operators.symmetric_library import as_given
from clearhead.shapes import Bool, Float

__all__ = ["PursuitStep", "PursuitTrace", "trace_pursuit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PursuitStep:
    """One iteration, with one number of each kind for each head.

    residual: |K - L - S| over |K|, 0 where the constraint holds
    nonzeros: share of entries in the sparse part
    diagonal: mean weight that a token gives to itself
    """

    low_rank: Float[Tensor, "*b n d"]
    sparse: Float[Tensor, "*b n d"]
    dual: Float[Tensor, "*b n d"]
    residual: Float[Tensor, "*b"]
    nonzeros: Float[Tensor, "*b"]
    diagonal: Float[Tensor, "*b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PursuitTrace:
    """The iterations in their order, and the mu and the bound that they had. `dual` of a step is Y, not Y / mu."""

    mu: Float[Tensor, "*b #n 1"]
    bound: Float[Tensor, "*b #n 1"]
    steps: tuple[PursuitStep, ...]

    @property
    def out(self) -> Float[Tensor, "*b n d"]:
        """What `rpc_attention` returns."""
        return self.steps[-1].low_rank


@torch.no_grad()
def trace_pursuit(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n d"],
    *,
    pursuit: Pursuit = PRESETS["code-2024-10"],
    queries: Float[Tensor, "*b n d"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> PursuitTrace:
    """Run `rpc_attention` and keep what its iterations see. Padded tokens count in no number; n x n is stored here."""
    check_rpc(k, v, pursuit, queries, mask)
    scale = checked_scale(k, scale)
    wide = torch.promote_types(k.dtype, torch.float32)
    k, v = k.to(wide), v.to(wide)
    queries = None if queries is None else queries.to(wide)
    bound, mu = pursuit.bound.of(k, mask), pursuit.bound.mu_of(k, mask)
    there = _there(k, mask)
    steps: list[PursuitStep] = []

    def note(keys: Tensor, low_rank: Tensor, sparse: Tensor, dual: Tensor) -> None:
        asking = keys if queries is None else queries
        gap = torch.where(there, k - low_rank - sparse, 0).norm(dim=(-2, -1))
        share = ((sparse != 0) & there).sum(dim=(-2, -1)) / (there.sum(dim=(-2, -1)) * k.shape[-1]).clamp_min(1)
        diagonal = torch.where(there[..., 0], _own_weight(asking, keys, mask, scale), 0)
        steps.append(
            PursuitStep(
                low_rank=low_rank,
                sparse=sparse,
                dual=mu * dual,
                residual=gap / torch.where(there, k, 0).norm(dim=(-2, -1)).clamp_min(torch.finfo(wide).tiny),
                nonzeros=share.to(wide),
                diagonal=diagonal.sum(dim=-1) / there.sum(dim=(-2, -1)).clamp_min(1),
            )
        )

    with as_given(k):
        iterate(k, v, bound, pursuit, Attending(queries=queries, mask=mask, scale=scale), note=note)
    return PursuitTrace(mu=mu, bound=bound, steps=tuple(steps))


def _there(k: Tensor, mask: Tensor | None) -> Tensor:
    """(..., n, 1), True for tokens that somebody may see."""
    if mask is None:
        return torch.ones_like(k[..., :1], dtype=torch.bool)
    return as_rows(mask).any(dim=-2).expand(k.shape[:-1])[..., None]


def _own_weight(asking: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = scale * asking @ keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)
    return torch.where(own > -torch.inf, (own - scores.logsumexp(dim=-1)).exp(), 0)
