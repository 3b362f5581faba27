r"""Multi-head attention whose values are computed from its keys (Teo and Nguyen, NeurIPS 2024, theorem 1).

The source reads trained attention as kernel PCA with a learned stand-in for the values. Here the theorem is taken at
its word: every head projects its queries on the principal axes of its keys, and has no values to learn.
"""

from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.modules.inputs import check_positive, check_tokens, visible_keys
from clearhead.operators.kernel_pca import AxisNorm
from clearhead.operators.kernel_pca_attention import kernel_pca_attention
from clearhead.shapes import Bool, Float

__all__ = ["KernelPCAAttention"]


class KernelPCAAttention(nn.Module):
    r"""Several heads that project queries on the principal axes of their keys, and a map of all projections.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_{i, jd} = \langle \varphi_i(W_q^{(i)} x_j), u_d^{(i)} \rangle

    with the features and axes of `clearhead.operators.kernel_pca` for the keys W_k^{(i)} y of each head.

    width, key_input_width: of the tokens that ask and of those that are asked; the second is the first by default
    heads: M, how many
    head_width: d, of queries and keys inside each head; width / M if None
    axes: how many each head projects on; d if None. Those beyond the rank, fewer than there are keys, give zeros
    out_width: of the output; width if None
    bias, out_bias: whether the maps of inputs, and that of outputs, add one
    scale, axis_norm, center_queries: as in `kernel_pca_attention`
    learn_axes: whether gradients flow through the axes. By default they do not: the maps learn through the weights
        alone, exactly so for W_q. The derivative of an axis grows as 1 / gap to its neighbours, and where they are
        close its terms are left out: it is finite, and no longer exact

    Projections on unit axes are no longer than a query's feature, exp(s|q|^2 / 2) / g(q), about 1 / (number of keys):
    whatever comes after should normalise. Under a causal mask every token has its own decomposition. Axes keep their
    order, by variance, and their sign, by their largest entry; both may jump when keys change.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        key_input_width: int | None = None,
        head_width: int | None = None,
        axes: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        axis_norm: AxisNorm = "unit",
        center_queries: bool = False,
        learn_axes: bool = False,
    ) -> None:
        super().__init__()
        key_input_width = width if key_input_width is None else key_input_width
        out_width = width if out_width is None else out_width
        check_positive(width=width, heads=heads, key_input_width=key_input_width, out_width=out_width)
        if head_width is None and width % heads:
            raise InputError(f"expected head_width, or heads that divide width; got {heads} and {width}")
        head_width = width // heads if head_width is None else head_width
        axes = head_width if axes is None else axes
        check_positive(head_width=head_width, axes=axes)
        self.heads, self.axes, self.scale, self.axis_norm = heads, axes, scale, axis_norm
        self.center_queries, self.learn_axes = center_queries, learn_axes
        self.query = nn.Linear(width, heads * head_width, bias=bias)
        self.key = nn.Linear(key_input_width, heads * head_width, bias=bias)
        self.out = nn.Linear(heads * axes, out_width, bias=out_bias)

    def forward(
        self,
        query: Float[Tensor, "*b n p"],
        key: Float[Tensor, "*b m c"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b m"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n o"]:
        """The output for every query, (..., n, out_width).

        query, key: (..., tokens, width); without a key the query is the key
        mask: True where a query may look, broadcasts to (..., h, n, m)
        key_mask: (..., m), True where there is a key, as `pad_sets` makes it
        causal: whether the last query sees all keys and each query before it one less

        A query that may look nowhere, or at one key only, gets the bias of W_o, or zeros without one.
        """
        key = query if key is None else key
        check_tokens({"query": query, "key": key}, {"query": self.query, "key": self.key})
        seen = visible_keys(
            (*query.shape[:-2], self.heads, query.shape[-2], key.shape[-2]),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            bias=None,
            leading=query.ndim - 2,
            device=query.device,
        )
        projected = kernel_pca_attention(
            self._split(self.query(query)),
            self._split(self.key(key)),
            axes=self.axes,
            scale=self.scale,
            mask=seen,
            axis_norm=self.axis_norm,
            center_queries=self.center_queries,
            learn_axes=self.learn_axes,
        )
        joined: Tensor = self.out(projected.movedim(-3, -2).flatten(-2))
        return joined

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).movedim(-2, -3)

    def extra_repr(self) -> str:
        """What the maps do not show."""
        return (
            f"heads={self.heads}, axes={self.axes}, axis_norm={self.axis_norm!r}, "
            f"center_queries={self.center_queries}, learn_axes={self.learn_axes}"
        )
