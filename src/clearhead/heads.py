"""The tensors of one attention call. Theories get these and nothing else of a model."""

from dataclasses import dataclass

from torch import Tensor

from clearhead.shapes import Bool, Float

__all__ = ["Heads", "LayerRecord", "LinearMap", "Stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMap:
    """What a layer's queries, keys or values y were made from: y[b, h] = x[b] weight[h] + bias[h], to rounding.

    These are the model's own tensors and not copies, as q, k and v are, unless the model multiplied the map's output by
    a constant: weight and bias then carry it. Heads that share keys or values share the map.
    """

    x: Float[Tensor, "b t c"]
    weight: Float[Tensor, "h c f"]
    bias: Float[Tensor, "h f"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The tokens that a model carries past a block of attention and past what follows it, one entry for each input.

    In a block without norms, between = before + attention(before) and after = between + mlp(between). Where a norm
    follows each sum, as in BERT, it is in `between` and `after`: they are what the next part is added to.
    """

    before: Float[Tensor, "i t c"]
    between: Float[Tensor, "i t c"]
    after: Float[Tensor, "i t c"] | None = None
    """None where nothing follows that could be told from the next block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """One call of one attention layer, in one layout whatever the model's own.

    Key and value heads that a model shares among queries (grouped-query attention) are repeated, so there is one h;
    rotary codes are already in q and k. The layer computes, with what is None left out,

        out = softmax(cap(scale * q k^T) + bias, over the keys that mask leaves visible, beside the sinks) v
    """

    layer: int
    """Place of the call in the forward pass, from 0. A module that runs several times has several."""
    name: str
    """Path of the module that made the call."""
    q: Float[Tensor, "b h n d"]
    k: Float[Tensor, "b h m d"]
    v: Float[Tensor, "b h m e"]
    out: Float[Tensor, "b h n e"]
    scale: float
    mask: Bool[Tensor, "#b #h #n #m"] | None = None
    """True where a query may look."""
    bias: Float[Tensor, "#b #h #n #m"] | None = None
    """Finite term added to the scaled scores, such as a relative position bias."""
    softcap: float | None = None
    sinks: Float[Tensor, "h"] | None = None
    """One logit per head that takes weight and carries no value."""
    dropout: float = 0.0
    """Probability with which weights were dropped in `out`; 0 outside training."""
    groups: int = 1
    """How many query heads share each key head in the model."""
    windows: int = 1
    """How many consecutive entries of b belong to one input, as the windows of an image do."""
    interface: str = ""
    """The interface by which the model exposes the layer."""
    queries_from: LinearMap | None = None
    """The linear map that made the queries; None where they are no linear map's output, or it was not seen."""
    keys_from: LinearMap | None = None
    """That which made the keys, in the same way. Rotary codes and norms leave queries and keys none."""
    values_from: LinearMap | None = None
    """That which made the values, in the same way."""
    out_gradient: Float[Tensor, "b h n e"] | None = None
    """Gradient of the caller's loss at `out`, where one was asked for; None also where `out` does not reach it."""
    stream: Stream | None = None
    """The tokens before and after the block, where they were asked for; None also where they were not found."""

    @property
    def rows(self) -> Bool[Tensor, "#b #h #n 1"] | None:
        """True for the queries that may look somewhere; None if all may. The others have no defined attention."""
        return None if self.mask is None else self.mask.any(dim=-1, keepdim=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One captured attention layer: its number in forward-pass order, its module, its heads, and its interface."""

    layer: int
    name: str
    heads: int
    interface: str
