r"""Multi-head subspace self-attention as a layer (Yu et al. 2023, arXiv 2306.01129; its released code, crate.py)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import linear

from clearhead.modules.inputs import check_tokens, checked_head_width, visible_keys
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float

__all__ = ["SubspaceAttention"]


class SubspaceAttention(nn.Module):
    r"""Attention in several subspaces, where a projected token is its own query, key and value.

    .. math:: O = W_o\, [H_1; \dots; H_K], \qquad H_k = V_k\, \mathrm{softmax}(s V_k^T V_k), \qquad V_k = U_k^T X

    width: of a token
    heads, head_width: K and p; p is width / K if None
    tied: whether W_o is [U_1 ... U_K], as derived; else it is a map of its own with a bias, as released
    scale: s, 1/sqrt(p) if None, as released
    operator: a function (k, v, *, mask, scale), called with those that are given and V_k for both

    The layer owns U as one map without a bias, whose rows are those of U_1^T, then of U_2^T and so on. Nothing holds
    them orthonormal.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int | None = None,
        tied: bool = False,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = symmetric_attention,
    ) -> None:
        super().__init__()
        head_width = checked_head_width(width, heads, head_width)
        self.heads, self.scale, self.operator = heads, scale, operator
        self.subspaces = nn.Linear(width, heads * head_width, bias=False)
        self.out = None if tied else nn.Linear(heads * head_width, width, bias=out_bias)

    @property
    def bases(self) -> Float[Tensor, "k d p"]:
        """U_k, a view of the layer's own parameter."""
        return self.subspaces.weight.reshape(self.heads, -1, self.subspaces.in_features).mT

    def forward(
        self,
        x: Float[Tensor, "*b n d"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n d"]:
        """The output of every token, (..., n, width).

        mask: True where a token may look, broadcasts to (..., heads, n, n)
        key_mask: (..., n), True where there is a token
        causal: whether a token sees only itself and those before it
        """
        check_tokens({"x": x}, {"x": self.subspaces})
        n = x.shape[-2]
        seen = visible_keys(
            (*x.shape[:-2], self.heads, n, n), mask=mask, key_mask=key_mask, causal=causal, bias=None,
            leading=x.ndim - 2, device=x.device,
        )  # fmt: skip
        v = self.subspaces(x).unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        options = {"mask": seen, "scale": self.scale}
        given = {name: option for name, option in options.items() if option is not None}
        joined = self.operator(v, v, **given).movedim(-3, -2).flatten(-2)
        if self.out is None:
            return linear(joined, self.subspaces.weight.mT)
        out: Tensor = self.out(joined)
        return out

    def extra_repr(self) -> str:
        """What the maps do not show."""
        return f"heads={self.heads}, tied={self.out is None}"
