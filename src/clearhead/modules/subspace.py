r"""Multi-head subspace self-attention (Yu et al. 2023, arXiv 2306.01129; its released code, crate.py)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from clearhead.modules.inputs import check_tokens, combine_masks, join_heads, present, resolve_head_dim, split_heads
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float


class SubspaceAttention(nn.Module):
    r"""Attention in several subspaces, where a projected token is query, key and value.

    .. math:: O = W_o\, [H_1; \dots; H_K], \qquad H_k = V_k\, \mathrm{softmax}(s V_k^T V_k), \qquad V_k = U_k^T X

    embed_dim: width of the tokens
    num_heads, head_dim: K, the number of subspaces, and p, their dimension; embed_dim / K if None
    tied: True if W_o is [U_1 ... U_K], as derived; False for a projection with a bias, as released
    out_bias: True for a bias in W_o; U has none
    scale: s; 1/sqrt(p) if None, as released
    operator: a function (k, v, *, mask, scale), called with V_k twice; None options are not passed

    The parameter U is one projection, whose rows are those of U_1^T, then of U_2^T and so on. They are not constrained
    to be orthonormal.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        tied: bool = False,
        head_dim: int | None = None,
        out_bias: bool = True,
        scale: float | None = None,
        operator: Callable[..., Tensor] = symmetric_attention,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        head_dim = resolve_head_dim(embed_dim, num_heads, head_dim)
        self.num_heads, self.scale, self.operator = num_heads, scale, operator
        width = num_heads * head_dim
        self.subspaces = nn.Linear(embed_dim, width, bias=False, device=device, dtype=dtype)
        self.out = None if tied else nn.Linear(width, embed_dim, bias=out_bias, device=device, dtype=dtype)

    @property
    def bases(self) -> Float[Tensor, "k d p"]:
        """U_k, a view of the parameter."""
        return self.subspaces.weight.reshape(self.num_heads, -1, self.subspaces.in_features).mT

    def forward(
        self,
        x: Float[Tensor, "*b n d"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n d"]:
        """Return the output of every token, (..., n, embed_dim).

        mask: True where a token may attend, broadcasts to (..., heads, n, n)
        key_mask: (..., n), True at tokens and False at padding
        causal: True if a token sees only itself and the tokens before it
        """
        check_tokens({"x": x}, {"x": self.subspaces})
        combined = combine_masks(x, x, self.num_heads, mask=mask, key_mask=key_mask, causal=causal)
        v = split_heads(self.subspaces(x), self.num_heads)
        heads = join_heads(self.operator(v, v, **present(mask=combined, scale=self.scale)))
        if self.out is None:
            return linear(heads, self.subspaces.weight.mT)
        out: Tensor = self.out(heads)
        return out

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return f"num_heads={self.num_heads}, tied={self.out is None}"
