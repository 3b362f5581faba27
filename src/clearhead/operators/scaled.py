r"""Scaled attention (Teo and Nguyen, NeurIPS 2024, arXiv 2406.13762, remark 3 and section 3).

Their values are V = G A - G 1_N A = (I - S) V^ with V^ = G A and S = G 1_N / G. A network that learns V^ as X W_V can
learn S as well: H = softmax(Q K^T s) (I - S) V^. Names here and there: v is V^, `scale` is 1/sqrt(D), and the three
kinds of S are theirs. Their readme calls "alpha x Asym" what their code computes as alpha softmax(K K^T s), which is
`AlphaSymmetric` here; `AlphaAsymmetric` is alpha softmax(Q K^T s).

Where we differ: the source has no masks. Here S looks where attention may, see `scaled_attention`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.resizing import Layout, resize_matrix
from clearhead.operators.softmax import softmax_attention
from clearhead.operators.symmetric import symmetric_attention
from clearhead.shapes import Bool, Float, ShapeError, broadcasts, check_attention_operands

__all__ = ["AlphaAsymmetric", "AlphaSymmetric", "SMatrix", "Scaling", "scaled_attention"]


@dataclass(frozen=True, slots=True, eq=False)
class SMatrix:
    """S itself, (m, m) for all heads or (h, m, m) with one for each.

    resize: None refuses another number of keys; "line" or "grid" is the layout in which `resize_matrix` interpolates S
    num_prefix_tokens: the number of leading keys that are not interpolated, such as a class token
    """

    matrix: Float[Tensor, "*h m m"]
    resize: Layout | None = None
    num_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AlphaSymmetric:
    """S = alpha softmax(K K^T s), alpha one number or one for each head."""

    alpha: Float[Tensor, "..."] | float


@dataclass(frozen=True, slots=True, eq=False)
class AlphaAsymmetric:
    """S = alpha softmax(Q K^T s), alpha one number or one for each head."""

    alpha: Float[Tensor, "..."] | float


Scaling = SMatrix | AlphaSymmetric | AlphaAsymmetric


def scaled_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    s: Scaling,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Softmax attention over values from which other tokens' values are taken off.

    .. math:: H = \operatorname{softmax}(\text{scale}\; q k^\top)\,(I - S)\, v

    s: S, as an `SMatrix`, or in proportion to attention, `AlphaSymmetric` or `AlphaAsymmetric`; zero is plain attention
    mask: True where a query may look, broadcasts to (..., n, m)

    Row j of S sees what token j may see: attention under the same mask, or a matrix without the hidden entries. So
    tokens that are hidden from all enter nowhere, and under a causal mask nothing of the future does. A mask that
    differs between queries therefore asks for n = m, as `AlphaAsymmetric` does always; one query with a mask of its own
    is told which keys there are. Rows of S do not sum to one, and alpha may be anything.

    Both products run on the kernels of `softmax_attention` and `symmetric_attention`, which store no n x m matrix. A
    matrix S takes one product for the whole batch, unless a mask differs between inputs and between queries.
    """
    among_keys = check_scaling(q, k, v, s, mask)
    if isinstance(s, SMatrix):
        less = _product(matrix_for_keys(s, q, k, v), v, among_keys)
    elif isinstance(s, AlphaSymmetric):
        less = expand_alpha(s.alpha, v) * symmetric_attention(k, v, mask=among_keys, scale=scale)
    else:
        less = expand_alpha(s.alpha, v) * softmax_attention(q, k, v, mask=among_keys, scale=scale)
    return softmax_attention(q, k, (v - less).to(v.dtype), mask=mask, scale=scale)


def _got(q: Tensor, k: Tensor, v: Tensor, **more: Tensor | None) -> str:
    operands = {"q": q, "k": k, "v": v, **more}
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in operands.items() if x is not None)


def check_scaling(q: Tensor, k: Tensor, v: Tensor, s: Scaling, mask: Tensor | None) -> Tensor | None:
    """What tokens may see of one another, as a mask (..., m, m)."""
    check_attention_operands(q, k, v, mask=mask)
    if not isinstance(s, SMatrix | AlphaSymmetric | AlphaAsymmetric):
        raise InputError(f"expected s as SMatrix, AlphaSymmetric or AlphaAsymmetric; got {type(s).__name__}")
    if q.shape[-2] == k.shape[-2]:
        return mask
    if isinstance(s, AlphaAsymmetric):
        raise ShapeError(
            f"expected a query for every key, for S is alpha times attention itself; got {_got(q, k, v, mask=mask)}"
        )
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        raise ShapeError(
            f"expected n = m, or a mask (..., 1, m) that is the same for all queries, since S needs to know what each "
            f"key may see; got {_got(q, k, v, mask=mask)}"
        )
    return mask


def expand_alpha(alpha: Tensor | float, v: Tensor) -> Tensor | float:
    if not isinstance(alpha, Tensor):
        return alpha
    if not alpha.is_floating_point() or alpha.device != v.device:
        raise InputError(f"expected a floating alpha on {v.device}, as v is; got {alpha.dtype} on {alpha.device}")
    if alpha.numel() == 1:
        alpha = alpha.reshape(())
    if not broadcasts(tuple(alpha.shape), tuple(v.shape[:-2])):
        raise ShapeError(
            f"expected one alpha, or one for each head, {tuple(v.shape[:-2])[-1:]}; "
            f"got alpha {tuple(alpha.shape)}, v {tuple(v.shape)}"
        )
    return alpha.to(torch.promote_types(v.dtype, torch.float32))[..., None, None]


def matrix_for_keys(s: SMatrix, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """S for as many keys as there are, in the dtype of the values."""
    matrix, m = s.matrix, k.shape[-2]
    if not matrix.is_floating_point() or matrix.device != v.device:
        raise InputError(f"expected a floating matrix on {v.device}, as v is; got {matrix.dtype} on {matrix.device}")
    square = 2 <= matrix.ndim <= min(v.ndim, 3) and matrix.shape[-1] == matrix.shape[-2]
    if not square or (matrix.ndim == 3 and matrix.shape[0] not in (1, v.shape[-3])):
        raise ShapeError(f"expected S (m, m), or (h, m, m) for heads; got S {tuple(matrix.shape)}, {_got(q, k, v)}")
    if matrix.shape[-1] != m and s.resize is None:
        raise ShapeError(
            f"S was made for {matrix.shape[-1]} tokens and there are {m}: pass as many, or let it be resized "
            f'(resize="line" or "grid"); got S {tuple(matrix.shape)}, {_got(q, k, v)}'
        )
    if s.resize is not None:
        matrix = resize_matrix(matrix, m, layout=s.resize, num_prefix_tokens=s.num_prefix_tokens)
    return matrix.to(v.dtype)


def _product(matrix: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """S v, with S zero where the mask is False."""
    if mask is None:
        return _folded(matrix, v)
    if mask.ndim < 2 or mask.shape[-2] == 1:  # taken from the values, there is one S for all inputs
        there = mask[..., None] if mask.ndim < 2 else mask.mT
        return _folded(matrix, torch.where(there, v, 0))
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    shown = torch.where(mask, matrix, 0)
    return _folded(shown, v) if shown.ndim <= 3 else shown @ v


def _folded(matrix: Tensor, v: Tensor) -> Tensor:
    """S v for S (m, m) or (h, m, m), with the batch among the columns of one product."""
    if matrix.ndim == 3 and v.ndim > 3:
        columns = v.movedim((-3, -2), (0, 1))
        return (matrix @ columns.flatten(2)).reshape(columns.shape).movedim((0, 1), (-3, -2))
    if matrix.ndim == 2 and v.ndim > 2:
        columns = v.movedim(-2, 0)
        return (matrix @ columns.flatten(1)).reshape(columns.shape).movedim(0, -2)
    return matrix @ v
