"""What one attention layer asks, before anybody answers: of a model's own attention or of another operator."""

from dataclasses import dataclass

from torch import Tensor

from clearhead.heads import Heads
from clearhead.shapes import Bool, Float

__all__ = ["Call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The fields of `Heads` but for the output, with any number of axes before (n, d).

    causal: whether each query stands at the place of one of the keys and sees those up to it
    cross: whether keys and values come from another sequence than the queries
    window: how many keys a query sees at most, where the layer has a sliding window
    folded: how many heads lie within the last axis before n, 1 if there are none; None if that axis is theirs
    """

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

    def seen(self, *, name: str, out: Float[Tensor, "b h n e"], windows: int, socket: str) -> Heads:
        """The call with its output, as theories get it; for calls of four axes."""
        return Heads(
            layer=0,
            name=name,
            q=self.q,
            k=self.k,
            v=self.v,
            out=out,
            scale=self.scale,
            mask=self.mask,
            bias=self.bias,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout=self.dropout,
            groups=self.groups,
            windows=windows,
            socket=socket,
        )
