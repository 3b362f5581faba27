"""The claims of kernel PCA measured on a stream of calls, each beside values of which the theory has nothing to say."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.audit.findings import Finding
from clearhead.heads import Heads
from clearhead.shapes import Bool
from clearhead.theories.kernel_pca.claims import CLAIMS, undefined
from clearhead.theories.kernel_pca.controls import (
    OTHER_HEADS,
    PERMUTED,
    RANDOM_MAP,
    RANDOM_VALUES,
    Draws,
    other_heads,
    random_maps,
)
from clearhead.theories.kernel_pca.entry import Entry
from clearhead.theories.kernel_pca.kernels import kernel_over_inputs
from clearhead.theories.kernel_pca.loss import seen_queries
from clearhead.theories.kernel_pca.space import key_space, principal_axes
from clearhead.theories.over_inputs import OverInputs, sample_by_head
from clearhead.theories.tallies import Control, Samples
from clearhead.theories.theory import Claim

__all__ = ["KernelPCAClaims"]

DRAWS = Draws()
NO_DRAWS = Draws(random_values=0, random_map=0, permuted=0, other_heads=0)


class KernelPCAClaims:
    """All claims of the theory, or those given, on every head of a stream of calls.

    Where a mask shows queries different keys (causal masks), the keys of the query that sees most are taken: the
    theorem holds for the queries that see all of them alone.
    """

    def __init__(
        self,
        seed: int,
        *,
        controls: bool = True,
        claims: Sequence[Claim] = CLAIMS,
        draws: Draws = DRAWS,
    ) -> None:
        self._seed = seed
        self._claims = tuple(claims)
        self._draws = draws if controls else NO_DRAWS
        self._maps: Tensor | None = None
        self._over_inputs = OverInputs(
            claims=self._claims,
            seed=seed,
            obstacle=_obstacle,
            sample=self._sample,
            undefined=undefined,
        )
        self._kernels = kernel_over_inputs(seed, controls=controls)

    def observe(self, heads: Heads) -> None:
        """Take one call of one layer."""
        made, draws = heads.values_from, self._draws.random_map
        if heads.bias is not None or heads.softcap is not None:
            self._kernels.observe(heads)
        elif made is not None and draws:
            self._maps = random_maps(made, draws=draws, seed=self._seed, layer=heads.layer)
        try:
            self._over_inputs.observe(heads)
        finally:
            self._maps = None

    def findings(self) -> list[Finding]:
        """What was found on every head seen, without verdicts."""
        return [*self._over_inputs.findings(), *self._kernels.findings()]

    def _sample(self, heads: Heads, index: int, generator: torch.Generator) -> Samples:
        return sample_by_head(
            _key_set(heads, index), lambda part, seen: self._measure(heads, index, part, seen, generator)
        )

    def _measure(self, heads: Heads, index: int, part: slice, seen: Tensor, generator: torch.Generator) -> Samples:
        # Query heads that share keys and values share the numbers that queries do not enter.
        step = heads.groups if part == slice(None) else 1
        k, v = (x[index, part][::step, seen] for x in (heads.k, heads.v))
        sinks = None if heads.sinks is None else heads.sinks[part][::step]
        space = key_space(k, scale=heads.scale, sinks=sinks)
        q = heads.q[index, part].reshape(-1, step, *heads.q.shape[-2:])
        entry = Entry(
            space=space,
            principal=principal_axes(space, v.shape[-1]),
            queries=seen_queries(space, q[..., _queries(heads, index, part, seen), :]),
        )
        drawn = self._drawn(v.double(), generator)
        if self._maps is not None and heads.values_from is not None:
            x, bias = heads.values_from.x[index][seen].double(), heads.values_from.bias
            mapped = x @ self._maps[:, part][:, ::step]
            drawn[RANDOM_MAP] = mapped if bias is None else mapped + bias[part][::step].double().unsqueeze(-2)
        return entry.samples(self._claims, v.double(), drawn)

    def _drawn(self, v: Tensor, generator: torch.Generator) -> dict[Control, Tensor]:
        """Values of every control that needs nothing but the head's own values, one draw after another."""
        draws, found = self._draws, {}
        _, m, e = v.shape
        if draws.random_values:
            normal = torch.randn(draws.random_values, 1, m, e, generator=generator, dtype=torch.float64)
            size = v.square().mean(dim=(-2, -1), keepdim=True).sqrt()
            found[RANDOM_VALUES] = normal.to(v.device) * torch.where(size > 0, size, 1)
        if draws.permuted:
            orders = [torch.randperm(m, generator=generator) for _ in range(draws.permuted)]
            found[PERMUTED] = torch.stack([v[:, order.to(v.device)] for order in orders])
        others = other_heads(v, most=draws.other_heads)
        if len(others) >= draws.fewest_kept:
            found[OTHER_HEADS] = others
        return found


def _obstacle(heads: Heads, index: int) -> str:
    """Why the claims say nothing of this entry of the batch, if so."""
    if heads.bias is not None:
        return "a bias on the scores depends on positions, so they are no kernel of the keys"
    if heads.softcap is not None:
        return "capped scores are no exponential kernel"
    width = heads.v.shape[-1]
    if int(_key_set(heads, index).sum(dim=-1).min()) <= width:
        return f"at most {width} tokens, whose variance any {width} axes hold"
    if not all(bool(torch.isfinite(x[index]).all()) for x in (heads.q, heads.k, heads.v)):
        return "queries, keys or values are not finite"
    return ""


def _key_set(heads: Heads, index: int) -> Bool[Tensor, "h m"]:
    """The keys seen by the query that sees most, the last of those if several do; one row if all heads share it."""
    if heads.mask is None:
        return torch.ones(1, heads.k.shape[-2], dtype=torch.bool, device=heads.k.device)
    mask = _mask_of(heads, index)
    widest = mask.shape[1] - 1 - mask.sum(dim=-1).flip(-1).argmax(dim=-1)
    return mask[torch.arange(mask.shape[0], device=mask.device), widest]


def _queries(heads: Heads, index: int, part: slice, seen: Tensor) -> Bool[Tensor, "n"]:
    """The queries that see just these keys; in self-attention only those whose own token is among them, so no padding.

    Where no such token is left, as in a mask that hides every token from itself, all that see these keys.
    """
    n, m = heads.q.shape[-2], heads.k.shape[-2]
    if heads.mask is None:
        return torch.ones(n, dtype=torch.bool, device=heads.q.device)
    mask = _mask_of(heads, index)
    mask = mask[part] if mask.shape[0] > 1 else mask
    same = (mask == seen).all(dim=-1).all(dim=0).expand(n)
    own = same & seen if n == m else same
    return own if bool(own.any()) else same


def _mask_of(heads: Heads, index: int) -> Bool[Tensor, "h n m"]:
    mask: Tensor = heads.mask[index if heads.mask.shape[0] > 1 else 0]  # type: ignore[index, union-attr]
    return mask.expand(-1, -1, heads.k.shape[-2])
