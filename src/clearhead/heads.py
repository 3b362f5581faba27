"""The tensors of one attention call. Theories get these and nothing else of a model."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.shapes import Bool, Float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMap:
    """The linear map of a layer's queries, keys or values y: y[b, h] = x[b] weight[h] + bias[h], to rounding.

    These are the model's own tensors and not copies, as q, k and v are. If the model multiplied the map's output by a
    constant, weight and bias include it. Heads that share keys or values share the map.
    """

    x: Float[Tensor, "b t c"]
    weight: Float[Tensor, "h c f"]
    bias: Float[Tensor, "h f"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """A layer norm over the features of each token; without weight and bias where they are None."""

    weight: Float[Tensor, "c"] | None
    bias: Float[Tensor, "c"] | None
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualStream:
    """The tokens that a model carries past a block of attention and past what follows it, one entry for each input.

    In a block without norms, between = before + attention(before) and after = between + mlp(between). Where a norm
    follows each sum, as in BERT, `between` and `after` include it: they are what the next output is added to. `total`
    is the sum before + attention(before) itself; without a norm after it, it equals `between`.
    """

    before: Float[Tensor, "i t c"]
    total: Float[Tensor, "i t c"]
    between: Float[Tensor, "i t c"]
    after: Float[Tensor, "i t c"] | None = None
    """None where nothing follows that can be distinguished from the next block."""
    norm: LayerNorm | None = None
    """The layer norm that makes `between` of `total`; None without one, and for other norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """One call of one attention layer, in one layout whatever the model's own.

    Key and value heads that a model shares among queries (grouped-query attention) are repeated, so there is one h;
    rotary codes are already in q and k. The layer computes, with what is None left out,

        out = softmax(cap(scale * q k^T) + bias, over the keys visible in mask and the sinks) v
    """

    layer: int
    """Number of the call in forward-pass order, from 0. A module that runs several times has several."""
    name: str
    """Path of the module that made the call."""
    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h m d"]
    v: Float[Tensor, "b h m e"]
    out: Float[Tensor, "b h n e"]
    scale: float
    mask: Bool[Tensor, "#b #h #n #m"] | None = None
    """True where a query may attend to a key."""
    bias: Float[Tensor, "#b #h #n #m"] | None = None
    """Finite term added to the scaled scores, such as a relative position bias."""
    softcap: float | None = None
    sinks: Float[Tensor, "h"] | None = None
    """One logit per head that takes weight and has no value."""
    dropout: float = 0.0
    """Probability with which weights were dropped in `out`; 0 outside training."""
    groups: int = 1
    """Number of query heads that share each key head in the model."""
    windows: int = 1
    """Number of consecutive entries of b that belong to one input, such as the windows of an image."""
    interface: str = ""
    """The interface by which the model exposes the layer."""
    queries_from: LinearMap | None = None
    """The linear map of the queries; None if they are not the output of one, or it was not found."""
    keys_from: LinearMap | None = None
    """The linear map of the keys. Queries and keys with rotary codes or norms have none."""
    values_from: LinearMap | None = None
    """The linear map of the values."""
    out_gradient: Float[Tensor, "b h n e"] | None = None
    """Gradient of the caller's loss at `out`; None without a loss, and where `out` does not reach it."""
    output_weight: Float[Tensor, "h e c"] | None = None
    """W_O: `residual_stream.total` is the sum over heads of out[h] output_weight[h], plus terms independent of `out`.
    None without a residual stream, with several windows, and where the dependence is not linear."""
    residual_stream: ResidualStream | None = None
    """The tokens around the block, if requested, or None."""

    def to(self, device: torch.device) -> "Heads":
        """Return the call on a device. Each tensor is moved once, also if several fields hold it."""
        moved: dict[Any, Tensor] = {}

        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                numbers = (value.data_ptr(), value.shape, value.stride(), value.dtype)
                if numbers not in moved:
                    moved[numbers] = value.to(device)
                return moved[numbers]
            if isinstance(value, LinearMap | LayerNorm | ResidualStream):
                return replace(value, **{entry.name: move(getattr(value, entry.name)) for entry in fields(value)})
            return value

        return replace(self, **{entry.name: move(getattr(self, entry.name)) for entry in fields(self)})

    def attention_weights(self) -> Float[Tensor, "b h n m"]:
        """Return the weights that `out` was computed with, from q, k and what is added to the scores.

        Rows sum to 1, or to less where sinks take weight. The row of a query without a visible key is 0. Weights of
        half-precision calls are in single precision.
        """
        wide = torch.promote_types(self.q.dtype, torch.float32)  # half precision overflows at scores of 65504
        return weights_of(self, wide)

    def __repr__(self) -> str:
        b, h, n, d = self.q.shape
        sizes = f"heads={h}, inputs={b}, queries={n}, keys={self.k.shape[-2]}, width={d}"
        return f"Heads(layer={self.layer}, name={self.name!r}, {sizes}, interface={self.interface!r})"

    @property
    def rows(self) -> Bool[Tensor, "#b #h #n 1"] | None:
        """True for the queries with a visible key; None if all have one. The others have no defined attention."""
        return None if self.mask is None else self.mask.any(dim=-1, keepdim=True)


def attention_weights(
    q: Float[Tensor, "*b h n d"],
    k: Float[Tensor, "*b h m d"],
    *,
    scale: float,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b h n m"]:
    """Return the weights of softmax attention; the row of a query without a visible key is 0."""
    return softmax_weights(attention_scores(q, k, scale=scale, softcap=softcap), mask=mask, bias=bias, sinks=sinks)


def weights_of(call: Any, dtype: torch.dtype) -> Tensor:
    """Return the attention weights of `Heads` or of one example, computed in a dtype."""
    return attention_weights(
        call.q.to(dtype), call.k.to(dtype), scale=call.scale, mask=call.mask, bias=call.bias, softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.to(dtype),
    )  # fmt: skip


def attention_scores(
    q: Float[Tensor, "*b n d"], k: Float[Tensor, "*b m d"], *, scale: float, softcap: float | None = None
) -> Float[Tensor, "*b n m"]:
    """Return the scores of queries and keys, without a bias."""
    scores = scale * q @ k.mT
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_weights(
    scores: Float[Tensor, "*b h n m"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b h n m"]:
    """Return the weights of scores; the row of a query without a visible key is 0."""
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        weights = scores.softmax(dim=-1)
        rows = None if mask is None else mask.any(dim=-1, keepdim=True)
        return weights if rows is None or bool(rows.all()) else weights.masked_fill(~rows, 0)
    total = torch.logaddexp(torch.logsumexp(scores, dim=-1, keepdim=True), sinks[:, None, None])
    return torch.where(scores == -torch.inf, 0, (scores - total).exp())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One captured attention layer: its number in forward-pass order, its module, its heads, and its interface."""

    layer: int
    name: str
    heads: int
    interface: str
