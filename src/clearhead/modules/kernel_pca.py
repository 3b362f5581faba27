r"""Multi-head attention whose values are computed from its keys (Teo and Nguyen, NeurIPS 2024, theorem 1).

The source reads trained attention as kernel PCA in which the values are learned. Here they are computed: every head
projects its queries onto the principal axes of its keys, and has no values to learn.
"""

import torch
from torch import Tensor, nn

from clearhead.modules.inputs import check_sizes, check_tokens, combine_masks, join_heads, resolve_head_dim, split_heads
from clearhead.operators.kernel_pca import AxisNorm
from clearhead.operators.kernel_pca_attention import kernel_pca_attention
from clearhead.shapes import Bool, Float


class KernelPCAAttention(nn.Module):
    r"""Multi-head projection of queries onto the principal axes of their keys.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_{i, jd} = \langle \varphi_i(W_q^{(i)} x_j), u_d^{(i)} \rangle

    with the features and axes of `clearhead.operators.kernel_pca` for the keys W_k^{(i)} y of each head.

    embed_dim: width of the query tokens x
    num_heads: M, the number of heads
    axes: the number of axes in each head; head_dim if None. Axes beyond the rank, which is below the number of keys,
        give zeros
    kdim: width of the key tokens y; embed_dim if None
    head_dim: d, width of queries and keys in each head; embed_dim / M if None
    out_dim: width of the output; embed_dim if None
    bias, out_bias: True for a bias in the input projections, and in the output projection
    scale, axis_norm, center_queries: as in `kernel_pca_attention`
    learn_axes: True if gradients flow through the axes. If False the projections learn through the weights alone,
        which is exact for W_q. The derivative of an axis grows as 1 / gap to its neighbours; where the gap is small
        its terms are left out, so that the gradient is finite but no longer exact

    Projections onto unit axes are no longer than a query's feature, exp(s|q|^2 / 2) / g(q), about 1 / (number of keys):
    normalise the output. Under a causal mask every token has its own decomposition. Axes are ordered by variance, and
    their largest entry is positive; both may jump when keys change.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        axes: int | None = None,
        kdim: int | None = None,
        head_dim: int | None = None,
        out_dim: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        axis_norm: AxisNorm = "unit",
        center_queries: bool = False,
        learn_axes: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        out_dim = embed_dim if out_dim is None else out_dim
        head_dim = resolve_head_dim(embed_dim, num_heads, head_dim)
        axes = head_dim if axes is None else axes
        check_sizes(kdim=kdim, out_dim=out_dim, axes=axes)
        self.num_heads, self.axes, self.scale, self.axis_norm = num_heads, axes, scale, axis_norm
        self.center_queries, self.learn_axes = center_queries, learn_axes
        self.query = nn.Linear(embed_dim, num_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.key = nn.Linear(kdim, num_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(num_heads * axes, out_dim, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self,
        query: Float[Tensor, "*b n p"],
        key: Float[Tensor, "*b m c"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n o"]:
        """Return the output for every query, (..., n, out_dim).

        query, key: (..., tokens, width); the key is the query if None
        mask: True where a query may attend, broadcasts to (..., h, n, m)
        key_mask: (..., m), True at keys and False at padding, as `pad_sets` returns it
        causal: True if the last query sees all keys and each query before it one fewer

        A query with at most one visible key gets the bias of W_o, or zeros without one.
        """
        key = query if key is None else key
        check_tokens({"query": query, "key": key}, {"query": self.query, "key": self.key})
        combined = combine_masks(query, key, self.num_heads, mask=mask, key_mask=key_mask, causal=causal)
        projections = kernel_pca_attention(
            split_heads(self.query(query), self.num_heads),
            split_heads(self.key(key), self.num_heads),
            axes=self.axes,
            scale=self.scale,
            mask=combined,
            axis_norm=self.axis_norm,
            center_queries=self.center_queries,
            learn_axes=self.learn_axes,
        )
        out: Tensor = self.out(join_heads(projections))
        return out

    def extra_repr(self) -> str:
        """Return the settings that the projections do not show."""
        return (
            f"num_heads={self.num_heads}, axes={self.axes}, axis_norm={self.axis_norm!r}, "
            f"center_queries={self.center_queries}, learn_axes={self.learn_axes}"
        )
