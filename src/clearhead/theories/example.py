"""One example: the tensors of one input at one layer, without a batch axis, and the attention of some of its heads."""

import threading
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from clearhead.heads import LinearMap, ResidualStream, attention_weights, weights_of
from clearhead.shapes import Bool, Float, Int

__all__ = ["Cache", "Example", "ModelOutput", "Random"]


Value = TypeVar("Value")
Wanted = TypeVar("Wanted", bound=Hashable)


class Random:
    """Random numbers of one example: the same for the same seed, layer and number, however inputs are batched.

    `torch` and `numpy` are generators that advance as they are used.
    """

    def __init__(self, *entropy: int) -> None:
        self._sequence = np.random.SeedSequence(entropy)

    @cached_property
    def torch(self) -> torch.Generator:
        """A torch generator, on the CPU."""
        return torch.Generator().manual_seed(int(self._sequence.generate_state(1)[0]))

    @cached_property
    def numpy(self) -> np.random.Generator:
        """A numpy generator."""
        return np.random.default_rng(self._sequence)


class Cache:
    """Values computed once and shared by examples that are measured at the same time."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of the key; compute it with `make` the first time."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            value: Value = self._values[key]
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One input, or one window of it, at one layer. Tensors are those of `Heads`, without the batch axis.

    The linear maps and the residual stream keep a batch axis of size one.

    Tensors contain padding. Leave it out of queries, keys and the shapes of random draws (`tokens`), or results depend
    on the batch.

    number: of the input at this layer, from 1; seed: of the audit
    mask: True where a query may attend; None if every query attends to every key
    controls: whether controls are wanted; the baseline is measured without
    claims: the claims that are wanted; None for all. A theory may measure others too, which are not counted
    per_call, per_audit: caches shared by the examples of one call of the layer, and by all examples of the audit
    """

    layer: int
    name: str
    number: int
    seed: int
    q: Float[Tensor, "h n d"]
    k: Float[Tensor, "h m d"]
    v: Float[Tensor, "h m e"]
    out: Float[Tensor, "h n e"]
    scale: float
    mask: Bool[Tensor, "#h n m"] | None = None
    bias: Float[Tensor, "#h n m"] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, "h"] | None = None
    groups: int = 1
    windows: int = 1
    queries_from: LinearMap | None = None
    keys_from: LinearMap | None = None
    values_from: LinearMap | None = None
    out_gradient: Float[Tensor, "h n e"] | None = None
    output_weight: Float[Tensor, "h e c"] | None = None
    stream: ResidualStream | None = None
    controls: bool = True
    claims: Container[Hashable] | None = None
    per_call: Cache = field(default_factory=Cache)
    per_audit: Cache = field(default_factory=Cache)

    def wants(self, *claims: Hashable) -> bool:
        """Return whether one of these claims is wanted."""
        return self.claims is None or any(claim in self.claims for claim in claims)

    def wanted(self, by_claim: Mapping[Wanted, Value]) -> dict[Wanted, Value]:
        """Return the entries of the claims that are wanted."""
        return {claim: value for claim, value in by_claim.items() if self.wants(claim)}

    @property
    def visible(self) -> Bool[Tensor, "#h m"]:
        """Keys that at least one query attends to: tokens that are not padding. One row if all heads share it."""
        if self.mask is None:
            return torch.ones(1, self.k.shape[-2], dtype=torch.bool, device=self.k.device)
        return self.mask.any(dim=-2)

    @property
    def tokens(self) -> Int[Tensor, "t"]:
        """Indices of the tokens that are not padding: the keys that a query of some head attends to.

        In self-attention they are those of the queries too.
        """
        return self.visible.any(dim=0).nonzero().flatten()

    def attention_weights(self) -> Float[Tensor, "h n m"]:
        """Return the weights that `out` was computed with, as `Heads.attention_weights` does, in double precision."""
        return weights_of(self, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutput:
    """The outputs of one run of the whole model.

    attention: of every attention call, in forward-pass order; None if it has another number of queries than of keys
    """

    attention: Sequence[Tensor | None]
    output: Tensor


AT_ONCE = 2**18
"""Largest number of entries of the matrices that are held at once, unless a single head has more: 2 MB."""


def head_slices(heads: int, entries: int) -> list[slice]:
    """Return slices of heads whose matrices of `entries` numbers each are held at once."""
    step = max(1, AT_ONCE // entries)
    return [slice(start, start + step) for start in range(0, heads, step)]


def of_heads(mask_or_bias: Tensor | None, heads: slice) -> Tensor | None:
    """Return the part of a mask or bias (#h, n, m) for these heads."""
    return mask_or_bias if mask_or_bias is None or len(mask_or_bias) == 1 else mask_or_bias[heads]


def between(
    mask_or_bias: Tensor | None, heads: slice, queries: Bool[Tensor, "t"], tokens: Bool[Tensor, "t"]
) -> Tensor | None:
    """Return a mask or bias of these heads between queries and tokens, (#h, n, m)."""
    part = of_heads(mask_or_bias, heads)
    return None if part is None else part[:, queries][:, :, tokens]


def first_weights(
    example: Example,
    heads: slice,
    queries: Bool[Tensor, "t"],
    tokens: Bool[Tensor, "t"],
    *,
    mask: Bool[Tensor, "#h n m"] | None,
    count: int,
) -> Float[Tensor, "h n c"]:
    """Return the attention of queries on the first `count` of the tokens, in float64.

    mask: between queries and tokens; None if all are visible
    """
    q, k = example.q[heads][:, queries], example.k[heads][:, tokens]
    bias = between(example.bias, heads, queries, tokens)
    sinks = None if example.sinks is None else example.sinks[heads].double()

    def weights(part: slice) -> Tensor:
        of_part = attention_weights(
            q[part].double(), k[part].double(), scale=example.scale, mask=of_heads(mask, part),
            bias=of_heads(bias, part), softcap=example.softcap, sinks=None if sinks is None else sinks[part],
        )  # fmt: skip
        return of_part[..., :count].clone()  # a view would hold all weights

    return torch.cat([weights(part) for part in head_slices(len(q), q.shape[1] * k.shape[1])])
