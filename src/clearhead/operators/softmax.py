r"""Softmax attention (Vaswani et al. 2017, equation 1), with the variations that released models use.

q, k, v are the rows of the source's Q, K, V; `scale` is 1/sqrt(d_k). The soft cap is that of Gemma 2 (Gemma Team 2024),
sinks are the learned logits of GPT-OSS, and a bias is the relative position term of T5 or Swin. A query without visible
keys gets zeros; the papers leave that case undefined.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.private_names import functorch_active, jit_tracing
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands, format_shapes

# Rows of a mask that are compared at once, so that they stay in the cache.
_BLOCK_ROWS = 64
_FEWER = "pass fewer tokens or heads at once, or a mask (..., 1, m) that is the same for all queries"


def softmax_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Return the mean of the values, each weighted by the softmax of its key's score.

    .. math::
        o_i = \sum_j w_{ij} v_j, \qquad
        w_{ij} = \frac{e^{s_{ij}}}{\sum_{j'} e^{s_{ij'}} + e^{\text{sink}}}, \qquad
        s_{ij} = \operatorname{cap}(\text{scale}\; q_i \cdot k_j) + \text{bias}_{ij}

    with cap(x) = softcap * tanh(x / softcap), sums over the keys that the mask leaves visible, and no sink by default.
    With `is_causal`, which requires n = m, query i also sees no key after i.
    `scale` is 1/sqrt(d) if None; `sinks` holds one logit per head, the axis before n. Without sinks, the weights
    of a row sum to one, so each output lies in the convex hull of the visible values. Without a visible key it is zero,
    whatever keys and values hold.

    Calls without a soft cap and sinks run on torch's fused kernel, which stores no n x m matrix, unless a bias has a
    wider dtype than q. The other calls compute their scores in single precision or better.
    NaN and infinity propagate: in q to its own row of the output, in k and v to every row. So does NaN where a score
    may overflow. A mask does not stop them: put zeros where keys and values are hidden.
    """
    check_attention_operands(q, k, v, mask=mask, bias=bias)
    check_sinks(q, k, v, sinks)
    check_causal(q, k, is_causal)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    bias = None if bias is None else as_rows(bias)
    plain = mask is None and bias is None and softcap is None and sinks is None
    if is_causal and plain and k.shape[-2]:
        return fused_attention(q, k, v, mask=None, is_causal=True, scale=scale)
    attend = partial(_attend, q, k, v, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    if is_causal:
        mask = add_causal_mask(mask, k)
    if mask is None:
        return attend(mask=None)
    return attend_with_keys(attend, mask)


def slow_softmax_attention(
    q: Float[Tensor, "*b n d"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "h"] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `softmax_attention` one query at a time."""
    check_attention_operands(q, k, v, mask=mask, bias=bias)
    check_sinks(q, k, v, sinks)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    *batch, n, m = *q.shape[:-1], k.shape[-2]
    visible = torch.ones(n, m, dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*batch, n, m)
    added = torch.zeros(n, m, dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
    added = added.expand(*batch, n, m)
    rows = []
    for i in range(n):
        score = scale * (q[..., i, None, :] * k).sum(dim=-1)
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        score = score + added[..., i, :]
        if sinks is not None:
            score = torch.cat([score, sinks.to(score.dtype).expand(*batch)[..., None]], dim=-1)
        row_mask = visible[..., i, :]
        if sinks is not None:
            row_mask = torch.cat([row_mask, torch.ones_like(row_mask[..., :1])], dim=-1)
        score = score.masked_fill(~row_mask, -torch.inf)
        top = score.detach().amax(dim=-1, keepdim=True) if score.shape[-1] else torch.zeros_like(score.sum(-1, True))
        weight = (score - torch.where(row_mask.any(dim=-1, keepdim=True), top, 0)).exp()
        share = weight[..., :m] / weight.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        rows.append((share[..., None] * v).sum(dim=-2))
    return torch.stack(rows, dim=-2) if rows else q.new_zeros(*batch, 0, v.shape[-1])


def check_causal(q: Tensor, k: Tensor, is_causal: bool) -> None:
    """Raise `ShapeError` if attention is causal and queries and keys are not the same tokens."""
    if is_causal and q.shape[-2] != k.shape[-2]:
        raise ShapeError(
            f"expected n = m with is_causal=True; got q {tuple(q.shape)}, k {tuple(k.shape)}: pass a mask instead"
        )


def add_causal_mask(mask: Bool[Tensor, "..."] | None, k: Tensor) -> Bool[Tensor, "... n n"]:
    """Return the mask without keys after each query."""
    past = torch.ones(k.shape[-2], k.shape[-2], dtype=torch.bool, device=k.device).tril()
    return past if mask is None else past & as_rows(mask)


def split_causal(
    mask: Bool[Tensor, "..."] | None, k: Float[Tensor, "*b n d"], *, is_causal: bool
) -> tuple[Bool[Tensor, "..."] | None, bool]:
    """Return the mask and whether attention is causal, in which case the mask is None or the same for all queries.

    A mask that is causal, or causal without some keys, is recognised where its entries may be read.
    """
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1 or mask.numel() == 0:
        return mask, is_causal
    if not (torch.compiler.is_compiling() or jit_tracing() or functorch_active() or mask.device.type != "cpu"):
        keys = _causal_keys(mask) if tuple(mask.shape[-2:]) == (k.shape[-2],) * 2 else None
        if keys is not None:
            return (None if bool(keys.all()) else keys), True
    return (add_causal_mask(mask, k) if is_causal else mask), False


def _causal_keys(mask: Bool[Tensor, "... n n"]) -> Bool[Tensor, "... 1 n"] | None:
    """Return the visible keys of a mask that is causal without the hidden keys, None for another mask.

    It is compared a block of rows at a time, eight entries at once: a copy of the mask would take longer.
    """
    n, keys = mask.shape[-1], mask[..., -1:, :]
    if bool(mask[..., 0, 1:].any()):
        return None
    # Rows of blocks from `start` on see columns up to their own: a view of this strip.
    strip = torch.ones(min(n, _BLOCK_ROWS), 2 * n, dtype=torch.bool).tril(n)
    once = mask[tuple(slice(1) if stride == 0 else slice(None) for stride in mask.stride()[:-2])]  # expanded axes
    for rows, visible in zip(once.reshape(-1, n, n), once[..., -1:, :].reshape(-1, 1, n), strict=True):
        for start in range(0, n, _BLOCK_ROWS):
            block = rows[start : start + _BLOCK_ROWS]
            expected = strip[: len(block), n - start : 2 * n - start] & visible
            if not _equal_bytes(block, expected):
                return None
    return keys


def _equal_bytes(x: Tensor, y: Tensor) -> bool:
    """Return whether two boolean tensors of one shape are equal."""
    if x.is_contiguous() and y.is_contiguous() and x.numel() % 8 == 0 and x.data_ptr() % 8 == y.data_ptr() % 8 == 0:
        offsets_fit = x.storage_offset() % 8 == y.storage_offset() % 8 == 0
        if offsets_fit:
            return torch.equal(x.view(-1).view(torch.int64), y.view(-1).view(torch.int64))
    return torch.equal(x, y)


def attend_with_keys(attend: Callable[..., Tensor], mask: Tensor) -> Tensor:
    """Return `attend(mask=...)` with a mask under which every query sees a key, and zeros for queries without keys.

    Kernels differ in their output for a row without keys, and some give NaN gradients, so they never get one.
    """
    rows = as_rows(mask)

    def compute() -> Tensor:
        has_keys = rows.any(dim=-1, keepdim=True)
        return torch.where(has_keys, attend(mask=rows | ~has_keys), 0)

    return run_within_memory(compute, task="attention", remedy=_FEWER, device=mask.device)


def as_rows(added: Tensor) -> Tensor:
    """Return a mask or bias with an axis for n and one for m, which the fused kernel requires."""
    return added if added.ndim > 1 else added.expand(1, -1 if added.ndim else 1)


def check_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> None:
    """Raise `ShapeError` unless there is one sink for each head of q."""
    if sinks is None or (q.ndim > 2 and sinks.shape == q.shape[-3:-2]):
        return
    got = format_shapes(q=q, k=k, v=v, sinks=sinks)
    raise ShapeError(f"expected sinks (h,), one for each head of q (..., h, n, d); got {got}")


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    fits = bias is None or torch.promote_types(bias.dtype, q.dtype) == q.dtype
    if softcap is not None or sinks is not None or not fits or k.shape[-2] == 0:
        return run_within_memory(
            partial(_dense, q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks),
            task="attention with a soft cap, sinks or a bias wider than q, which stores all scores,",
            remedy="pass fewer tokens or heads at once",
            device=q.device,
            needed=bytes_of_matrices((*q.shape[:-1], k.shape[-2]), torch.promote_types(q.dtype, torch.float32)),
        )
    added = mask
    if bias is not None:
        added = bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)
    return fused_attention(q, k, v, mask=added, scale=scale)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Call torch's fused attention, and return NaN where it would lose NaN, infinity or an overflow.

    mask: boolean or added to the scores; every query sees a key; None if is_causal
    """
    out = run_within_memory(
        partial(
            scaled_dot_product_attention, q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale
        ),
        task="attention",
        remedy=_FEWER,
        device=q.device,
        # torch converts a boolean mask to numbers.
        needed=0 if mask is None else bytes_of_matrices(mask.shape, q.dtype, count=1),
    )
    bias = None if mask is None or mask.dtype is torch.bool else mask.detach()
    return out if _surely_finite(q, k, bias, scale) else out + _not_finite(q, k, bias, scale).to(out.dtype)


def _surely_finite(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> bool:
    """Return whether no score can be NaN or overflow. False where numbers may not be read: see below."""
    # torch.compile, torch.func and tracing do not let a branch depend on numbers; a GPU would have to wait for them.
    if torch.compiler.is_compiling() or jit_tracing() or functorch_active() or q.device.type != "cpu":
        return False
    wide = torch.promote_types(q.dtype, torch.float32)
    size_q = float(torch.linalg.vector_norm(q.detach(), dtype=wide))
    size_k = size_q if q is k else float(torch.linalg.vector_norm(k.detach(), dtype=wide))
    if not size_q * size_k * max(1.0, abs(scale)) < torch.finfo(wide).max:  # also where one of them is NaN
        return False
    return bias is None or bias.numel() == 0 or float(bias.amax()) < math.inf


def _not_finite(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Float[Tensor, "... n 1"]:
    """Return 0 for each query, or NaN where a score of it is not finite or may overflow.

    torch's CPU kernel takes a row whose scores are all NaN or minus infinity for one without keys, and returns zeros.
    In half precision it returns finite numbers for some infinite keys.
    """
    if q.shape[-1] == 0:
        return torch.zeros_like(q.detach().sum(dim=-1, keepdim=True))
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.detach().abs(), k.detach().abs()
    largest_q, largest_k = q.amax(dim=-1, keepdim=True).to(wide), k.amax(dim=(-2, -1), keepdim=True).to(wide)
    spoiled = 0 * (largest_q * largest_k * (max(1.0, abs(scale)) * q.shape[-1]))
    # A bias of minus infinity hides a key.
    return spoiled if bias is None else spoiled + 0 * bias.amax(dim=-1, keepdim=True).clamp_min(0)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)  # half precision overflows at scores of 65504
    scores = (q.to(wide) * scale) @ k.to(wide).mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total.dtype)[:, None, None])
    weights = torch.where(scores == -torch.inf, 0, (scores - total).exp())
    out = weights.to(v.dtype) @ v
    # A soft cap makes a finite score of one that overflows.
    done = softcap is not None or k.shape[-2] == 0 or _surely_finite(q, k, None, scale)
    return out if done else out + _not_finite(q, k, None, scale).to(out.dtype)
