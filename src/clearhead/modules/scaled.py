r"""Multi-head attention that learns what to take off its values (Teo and Nguyen 2024, "Scaled Attention", remark 3).

Names here and there: V^ is X W_V, S is the source's, one matrix for each head, or one alpha for a layer.
"""

from typing import Any

from torch import Tensor, nn

from clearhead.modules.token_attention import TokenAttention
from clearhead.operators.learned_scaling import Form, Scaled
from clearhead.operators.resizing import Layout

__all__ = ["ScaledAttention"]


class ScaledAttention(TokenAttention):
    r"""Several scaled attentions side by side, and a map of all their outputs.

    .. math:: O = W_o\, [H_1; \dots; H_M], \qquad H_i = \operatorname{softmax}(\text{scale}\; Q_i K_i^\top)(I - S_i) V_i

    form: "matrix", S_i free; "symmetric", S_i = alpha softmax(K_i K_i^T scale); "asymmetric", with Q_i in place of the
        first K_i. The source's readme says asymmetric of what its code, and its figure, have as symmetric
    tokens: for how many tokens a matrix is made
    per_head: whether each head learns an alpha of its own; as published, there is one
    resize, apart: what a matrix does at another number of tokens, see `clearhead.operators.SMatrix`

    The other arguments are those of `TokenAttention`; queries are as wide as keys.

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
        scaled = Scaled(form=form, tokens=tokens, heads=heads, per_head=per_head, resize=resize, apart=apart)
        super().__init__(
            width,
            heads=heads,
            head_width=head_width,
            value_width=value_width,
            out_width=out_width,
            bias=bias,
            out_bias=out_bias,
            scale=scale,
            operator=scaled.build(),
        )
        self.query = nn.Linear(width, self.key.out_features, bias=bias)

    def attend(self, x: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Scaled attention of every head. S looks where attention may."""
        return self.operator(self.split(self.query(x)), k, v, **options)
