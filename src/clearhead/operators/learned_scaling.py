r"""Scaled attention with a learned S, initially zero, as in the source (Teo and Nguyen 2024, section 3).

`Scaled` holds the settings of S; its `build` returns a module that is called as operators are. It is the only operator
here with a parameter: both a layer (`clearhead.modules.ScaledAttention`) and a swapped layer of a given model use it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.operators.scaled import (
    AlphaAsymmetric,
    AlphaSymmetric,
    Layout,
    Scaling,
    SMatrix,
    expand_alpha,
    scaled_attention,
    scaled_values,
)
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.symmetric_kernel import no_autocast
from clearhead.operators.weights import softmax_attention_weights
from clearhead.shapes import Bool, Float

Form = Literal["matrix", "symmetric", "asymmetric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The settings of a learned S. It has no parameters itself: every layer gets a new module by `build`.

    form: "matrix" for a free S; "symmetric" for alpha softmax(K K^T s), as in the published code; "asymmetric" for
        alpha softmax(Q K^T s)
    num_tokens: the number of tokens of a matrix S
    num_heads: the number of heads; required for a matrix and with `per_head`
    per_head: True for one alpha for each head; as published, a layer has one
    resize, num_prefix_tokens: how a matrix S adapts to another number of tokens, see `SMatrix`
    """

    form: Form = "symmetric"
    num_tokens: int | None = None
    num_heads: int | None = None
    per_head: bool = False
    resize: Layout | None = None
    num_prefix_tokens: int = 0

    name: ClassVar[str] = "scaled"
    square: ClassVar[bool] = True
    """With fewer queries than keys, the mask of S, which has a row for every key, would not be known."""
    uses_queries: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.form not in ("matrix", "symmetric", "asymmetric"):
            raise InputError(f'expected form "matrix", "symmetric" or "asymmetric"; got {self.form!r}')
        sizes = [size for size in (self.num_tokens, self.num_heads) if size is not None]
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            raise InputError(f"expected num_tokens and num_heads of one or more; got {self}")
        prefix = self.num_prefix_tokens
        if self.resize not in (None, "line", "grid") or not isinstance(prefix, int) or prefix < 0:
            raise InputError(f'expected resize as None, "line" or "grid", and num_prefix_tokens >= 0; got {self}')
        if not isinstance(self.per_head, bool):
            raise InputError(f"expected per_head as True or False; got {self.per_head!r}")
        matrix = self.form == "matrix"
        if matrix and (self.num_tokens is None or self.per_head):
            raise InputError(f'expected num_tokens, and per_head=False, with form="matrix"; got {self}')
        if not matrix and (self.num_tokens is not None or self.resize is not None or self.num_prefix_tokens):
            raise InputError(f'expected num_tokens, resize and num_prefix_tokens only with form="matrix"; got {self}')
        if (matrix or self.per_head) and self.num_heads is None:
            raise InputError(f"expected num_heads, since each head has its own S; got {self}")

    @property
    def needs_past_queries(self) -> bool:
        """True if the queries of earlier tokens enter a later token's output, through S."""
        return self.form == "asymmetric"

    @property
    def has_key_rows(self) -> bool:
        """True if the rows of S v of earlier tokens stay the same in later steps: a matrix is resized in each."""
        return self.form == "symmetric"

    def build(self) -> "LearnedScaling":
        """Return a new module with S = 0, for which scaled attention is softmax attention."""
        return LearnedScaling(self)


class LearnedScaling(nn.Module):
    """`scaled_attention` with S as its parameter, initially zero: (q, k, v, *, mask, scale) -> o.

    A matrix has h n^2 entries, 12 * 3 * 197^2 = 1,397,124 in the source's DeiT-tiny, and is subject to weight decay.
    alpha has one axis, (1,) or (h,), so that recipes that do not decay vectors do not decay it.
    """

    def __init__(self, settings: Scaled) -> None:
        super().__init__()
        self.settings = settings
        heads, tokens = settings.num_heads or 1, settings.num_tokens
        shape = (heads, tokens, tokens) if tokens else (heads if settings.per_head else 1,)
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
        """Return `scaled_attention` with the current S."""
        return scaled_attention(q, k, v, s=self._scaling(), mask=mask, scale=scale)

    def _scaling(self) -> Scaling:
        if self.settings.form == "matrix":
            return SMatrix(self.s, resize=self.settings.resize, num_prefix_tokens=self.settings.num_prefix_tokens)
        return AlphaSymmetric(self.s) if self.settings.form == "symmetric" else AlphaAsymmetric(self.s)

    def weights_and_values(
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> tuple[Float[Tensor, "*b n m"], Float[Tensor, "*b m e"] | None]:
        """Return softmax(Q K^T s), and (I - S) v; None for the latter with fewer queries than keys."""
        values = None
        if q.shape[-2] == k.shape[-2]:
            values = scaled_values(q, k, v, s=self._scaling(), mask=mask, scale=scale)
        return softmax_attention_weights(q, k, mask=mask, scale=scale), values

    def key_rows(
        self,
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        *,
        mask: Bool[Tensor, "... r m"],
        scale: float | None = None,
    ) -> Float[Tensor, "*b r e"]:
        """Return the last rows of softmax(K K^T s) v, as many as the mask has. They do not depend on alpha."""
        rows, tokens = mask.shape[-2], k.shape[-2]
        if rows == tokens:
            return symmetric_attention(k, v, mask=mask, scale=scale)
        with no_autocast(k):
            return softmax_attention(k[..., tokens - rows :, :], k, v, mask=mask, scale=scale)

    def attend_with_rows(
        self,
        q: Float[Tensor, "*b n d"],
        k: Float[Tensor, "*b m d"],
        v: Float[Tensor, "*b m e"],
        *,
        rows: Float[Tensor, "*b m e"],
        mask: Bool[Tensor, "..."] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "*b n e"]:
        """Return the outputs of the last tokens with S = alpha softmax(K K^T s), at a cost linear in m.

        rows: `key_rows` of all m tokens
        """
        scaled = (v - expand_alpha(self.s, v) * rows).to(v.dtype)
        return softmax_attention(q, k, scaled, mask=mask, scale=scale)

    def extra_repr(self) -> str:
        """Return the form and the shape of S."""
        return f"{self.settings.form}, s={tuple(self.s.shape)}"
