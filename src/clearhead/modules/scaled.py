r"""Multi-head attention that learns what to take off its values (Teo and Nguyen 2024, "Scaled Attention", remark 3).

Names here and there: V^ is X W_V, S is the source's, one matrix for each head, or one alpha for a layer.
"""

from torch import Tensor, nn

from clearhead.axes import Bool, Float
from clearhead.modules.inputs import check_positive, check_tokens, visible_keys
from clearhead.operators.learned_scaling import Form, Scaled
from clearhead.operators.resizing import Layout

__all__ = ["ScaledAttention"]


class ScaledAttention(nn.Module):
    r"""Several scaled attentions side by side, and a map of all their outputs.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = \operatorname{softmax}(\text{scale}\; Q_i K_i^\top)(I - S_i) V_i

    width: of a token
    heads: M, how many
    form: "matrix", S_i free; "symmetric", S_i = alpha softmax(K_i K_i^T scale); "asymmetric", with Q_i in place of the
        first K_i. The source's readme says asymmetric of what its code, and its figure, have as symmetric
    tokens: for how many tokens a matrix is made
    per_head: whether each head learns an alpha of its own; as published, there is one
    resize, apart: what a matrix does at another number of tokens, see `clearhead.operators.SMatrix`
    head_width, value_width: of queries and keys, and of values, inside each head; width / M, and head_width, if None
    out_width: of the output; width if None
    bias, out_bias: whether the maps of inputs, and that of outputs, add one
    scale: 1/sqrt(head_width) if None

    S starts at zero, where the layer is `MultiHeadAttention` with the same maps, to the bit. alpha is a vector, which
    recipes for AdamW leave out of weight decay; a matrix is a weight like others, decayed in the source at 0.05.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        form: Form,
        tokens: int | None = None,
        per_head: bool = False,
        resize: Layout | None = None,
        apart: int = 0,
        head_width: int | None = None,
        value_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        out_width = width if out_width is None else out_width
        check_positive(width=width, heads=heads, out_width=out_width)
        if head_width is None and width % heads:
            raise ValueError(f"expected head_width, or heads that divide width; got {heads} and {width}")
        head_width = width // heads if head_width is None else head_width
        value_width = head_width if value_width is None else value_width
        check_positive(head_width=head_width, value_width=value_width)
        self.heads, self.scale = heads, scale
        self.query = nn.Linear(width, heads * head_width, bias=bias)
        self.key = nn.Linear(width, heads * head_width, bias=bias)
        self.value = nn.Linear(width, heads * value_width, bias=bias)
        self.scaling = Scaled(
            form=form, tokens=tokens, heads=heads, per_head=per_head, resize=resize, apart=apart
        ).build()
        self.out = nn.Linear(heads * value_width, out_width, bias=out_bias)

    def forward(
        self,
        x: Float[Tensor, "*b n c"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "*b n"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*b n o"]:
        """The output of every token, (..., n, out_width).

        mask: True where a token may look, broadcasts to (..., h, n, n)
        key_mask: (..., n), True where there is a token, as `pad_sets` makes it
        causal: whether a token sees only itself and those before it

        S looks where attention may. A token that may look nowhere gets the bias of W_o, or zeros without one.
        """
        check_tokens({"x": x}, {"x": self.query})
        n = x.shape[-2]
        seen = visible_keys(
            (*x.shape[:-2], self.heads, n, n),
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            bias=None,
            leading=x.ndim - 2,
            device=x.device,
        )
        q, k, v = (self._split(of(x)) for of in (self.query, self.key, self.value))
        attended: Tensor = self.scaling(q, k, v, mask=seen, scale=self.scale)
        joined: Tensor = self.out(attended.movedim(-3, -2).flatten(-2))
        return joined

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).movedim(-2, -3)

    def extra_repr(self) -> str:
        """What the maps do not show."""
        return f"heads={self.heads}"
