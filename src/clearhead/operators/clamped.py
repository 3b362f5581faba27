r"""Clamped-key attention: symmetric attention on keys whose entries are held within a bound.

It is one iteration of principal attention pursuit in the order of Teo and Nguyen 2024, exactly, for
:math:`x - \operatorname{shrink}_t(x) = \operatorname{clamp}(x, \pm t)`: whatever RPC-Attention gains, it has to gain
over this.
"""

import torch
from torch import Tensor

from clearhead.operators.key_bound import KeyBound
from clearhead.operators.pursuit_options import PRESETS
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.operators.symmetric_library import as_given
from clearhead.shapes import Bool, Float, check_attention_operands

__all__ = ["clamped_key_attention"]

_CODE = PRESETS["code-2024-10"].bound


def clamped_key_attention(
    k: Float[Tensor, "*b n d"],
    v: Float[Tensor, "*b n e"],
    *,
    bound: KeyBound = _CODE,
    queries: Float[Tensor, "*b n d"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Average the values by how their clamped keys agree with the reader's, or with its query where there are queries.

    .. math:: O = \operatorname{softmax}(\text{scale}\; Q K_c^T) V, \qquad K_c = \operatorname{clamp}(K, \pm t)

    with Q = K_c unless given, and t the bound of the keys. Masks are those of `symmetric_attention`.
    """
    check_attention_operands(k if queries is None else queries, k, v, mask=mask)
    t = bound.of(k, mask)
    wide = torch.promote_types(k.dtype, torch.float32)
    with as_given(k):
        clamped = k.to(wide).clamp(-t, t)
        if queries is None:
            return symmetric_attention(clamped, v.to(wide), mask=mask, scale=scale).to(v.dtype)
        return softmax_attention(queries.to(wide), clamped, v.to(wide), mask=mask, scale=scale).to(v.dtype)
