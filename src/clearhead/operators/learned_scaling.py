r"""Scaled attention with an S that is learned, from zero, as the source does (Teo and Nguyen 2024, section 3).

`Scaled` says which S; `build` makes it, a module that is called as operators are. It is the one operator here that owns
a parameter: a layer of its own (`clearhead.modules.ScaledAttention`) and a place in somebody's model both need it, and
the second has no maps for a layer to own.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.resizing import Layout
from clearhead.operators.scaled import AlphaAsymmetric, AlphaSymmetric, Scaling, SMatrix, scaled_attention
from clearhead.shapes import Bool, Float

__all__ = ["Form", "LearnedScaling", "Scaled"]

Form = Literal["matrix", "symmetric", "asymmetric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Which S is learned. It holds no numbers that learn: every place that takes it gets a module by `build`.

    form: "matrix", a free S; "symmetric", alpha softmax(K K^T s), as in the published code; "asymmetric",
        alpha softmax(Q K^T s)
    tokens: for how many a matrix is made
    heads: how many there are, where each has its own: always with a matrix, and with `per_head`
    per_head: whether each head has its own alpha; as published, a layer has one
    resize, apart: what a matrix does at another number of tokens, see `SMatrix`
    """

    form: Form = "symmetric"
    tokens: int | None = None
    heads: int | None = None
    per_head: bool = False
    resize: Layout | None = None
    apart: int = 0

    name: ClassVar[str] = "scaled"
    square: ClassVar[bool] = True
    """Given one query of many, S could not know what each key may see."""
    uses_queries: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.form not in ("matrix", "symmetric", "asymmetric"):
            raise InputError(f'expected a form "matrix", "symmetric" or "asymmetric"; got {self.form!r}')
        sizes = [size for size in (self.tokens, self.heads) if size is not None]
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            raise InputError(f"expected one token and one head or more; got {self}")
        if self.resize not in (None, "line", "grid") or not isinstance(self.apart, int) or self.apart < 0:
            raise InputError(f'expected resize as None, "line" or "grid", and apart as zero or more; got {self}')
        if not isinstance(self.per_head, bool):
            raise InputError(f"expected per_head as True or False; got {self.per_head!r}")
        matrix = self.form == "matrix"
        if matrix and (self.tokens is None or self.per_head):
            raise InputError(f"expected tokens, for how many S is made, and no per_head, which it is; got {self}")
        if not matrix and (self.tokens is not None or self.resize is not None or self.apart):
            raise InputError(f'expected tokens, resize and apart only with form="matrix"; got {self}')
        if (matrix or self.per_head) and self.heads is None:
            raise InputError(f"expected heads, one S for each; got {self}")

    @property
    def needs_past_queries(self) -> bool:
        """Whether earlier tokens' queries enter a later token's output: they are what S is made of."""
        return self.form == "asymmetric"

    def build(self) -> "LearnedScaling":
        """A new S of this kind, all zero, with which scaled attention is plain attention."""
        return LearnedScaling(self)


class LearnedScaling(nn.Module):
    """`scaled_attention` with S as its parameter, zero at first: (q, k, v, *, mask, scale) -> o.

    A matrix has h n^2 entries, 12 * 3 * 197^2 = 1,397,124 in the source's DeiT-tiny, and is decayed with other weights.
    alpha has one axis, (1,) or (h,), so that recipes that decay no vectors leave it alone.
    """

    def __init__(self, settings: Scaled) -> None:
        super().__init__()
        self.settings = settings
        heads = settings.heads or 1
        shape = (heads, settings.tokens, settings.tokens) if settings.tokens else (heads if settings.per_head else 1,)
        self.s = nn.Parameter(torch.zeros(shape))

    def forward(
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """`scaled_attention` with the S of now."""
        s: Scaling
        if self.settings.form == "matrix":
            s = SMatrix(self.s, resize=self.settings.resize, apart=self.settings.apart)
        elif self.settings.form == "symmetric":
            s = AlphaSymmetric(self.s)
        else:
            s = AlphaAsymmetric(self.s)
        return scaled_attention(q, k, v, s=s, mask=mask, scale=scale)

    def extra_repr(self) -> str:
        """Which S."""
        return f"{self.settings.form}, s={tuple(self.s.shape)}"
