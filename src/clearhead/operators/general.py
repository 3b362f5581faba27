r"""General attention: a weighted mean of transformed values, with any similarity function.

Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, equations (1) and (2); the similarities are
those of Wang et al. 2018 (*Non-local Neural Networks*, arXiv 1711.07971, section 3.2), and the distance kernel of
kernel regression. The slides write vectors as columns, O = W_v V softmax((W_k K)^T W_q Q); here tokens are rows. They
print one C for all queries; it depends on the query. They have no 1/sqrt(d), and neither do the defaults here.

q_j, k_i, v_i, f, g and C_j are the slides' symbols; `theta` and `phi`, the maps of queries and keys, are those of Wang
et al. and the W_q and W_k of the slides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.memory import bytes_of_matrices, run_within_memory
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """A similarity f(q, k) and its normalisation.

    pair: the definition, q (..., d) and k (..., d) to f (...)
    scores: all pairs at once, (..., n, m): log f if `exponential`, f if not
    exponential: True if f is positive and divided by its sum, C_j = sum_i f(q_j, k_i), so that the output is a mean of
        the values. Other similarities may be negative and their sum may vanish, so they are divided by the number of
        keys, C_j = m (Wang et al., section 3.2), and the output is not a mean
    theta, phi: maps applied to queries and keys first
    fused: a function that returns, for theta(q), phi(k) and the mask, queries, keys and a scale with the same softmax
        attention; None if torch has no fused form of it
    """

    pair: Callable[[Tensor, Tensor], Tensor]
    scores: Callable[[Tensor, Tensor], Tensor]
    exponential: bool
    theta: Map | None = None
    phi: Map | None = None
    fused: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, float]] | None = None

    def embedded(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return theta(q) and phi(k)."""
        return (q if self.theta is None else self.theta(q)), (k if self.phi is None else self.phi(k))


def gaussian(*, scale: float = 1.0) -> Similarity:
    r"""Return f(q, k) = exp(scale q.k); the scale is 1 by default, as in the sources."""
    return embedded_gaussian(None, None, scale=scale)


def embedded_gaussian(theta: Map | None, phi: Map | None, *, scale: float = 1.0) -> Similarity:
    r"""Return f(q, k) = exp(scale theta(q).phi(k)): softmax attention, equation (2) with theta = W_q and phi = W_k."""
    return Similarity(
        pair=lambda q, k: (scale * (q * k).sum(dim=-1)).exp(),
        scores=lambda q, k: scale * q @ k.mT,
        exponential=True,
        theta=theta,
        phi=phi,
        fused=lambda q, k, mask: (q, k, scale),
    )


def dot_product(theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""Return f(q, k) = theta(q).phi(k), divided by the number of keys, because its sum may vanish."""
    return Similarity(
        pair=lambda q, k: (q * k).sum(dim=-1),
        scores=lambda q, k: q @ k.mT,
        exponential=False,
        theta=theta,
        phi=phi,
    )


def concatenation(weight: Tensor, theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""Return f(q, k) = ReLU(w.[theta(q); phi(k)]), divided by the number of keys, because its sum may be zero.

    weight: w, the entries for queries first

    Pairs are not concatenated: the products of both halves are added over the grid of pairs.
    """

    def pair(q: Tensor, k: Tensor) -> Tensor:
        return torch.relu(torch.cat([q, k], dim=-1) @ weight.to(q.dtype))

    def scores(q: Tensor, k: Tensor) -> Tensor:
        widths = q.shape[-1], k.shape[-1]
        if weight.shape != (sum(widths),):
            got = f"weight {tuple(weight.shape)}, theta(q) {tuple(q.shape)}, phi(k) {tuple(k.shape)}"
            raise ShapeError(f"expected a weight ({sum(widths)},) for theta(q) and phi(k) concatenated; got {got}")
        w_q, w_k = weight[: widths[0]].to(q.dtype), weight[widths[0] :].to(k.dtype)
        return torch.relu((q @ w_q).unsqueeze(-1) + (k @ w_k).unsqueeze(-2))

    return Similarity(
        pair=pair,
        scores=scores,
        exponential=False,
        theta=theta,
        phi=phi,
    )


def gaussian_distance(*, bandwidth: float, theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""Return f(q, k) = exp(-|theta(q) - phi(k)|^2 / (2 bandwidth^2)), the kernel of Nadaraya-Watson regression.

    |q|^2 cancels in the quotient, so this is softmax attention with one more feature: 1 for q and -|k|^2/2 for k. To
    keep the squares of long keys from cancelling the distances, the median of the visible keys is subtracted from both
    first, which changes no distance. The error of log f is then the rounding error (single precision or better) times
    (spread of the keys / bandwidth)^2.
    """
    if not bandwidth > 0:
        raise InputError(f"expected a bandwidth above zero; got {bandwidth}")

    def fused(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, float]:
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        middle = _median(k.detach(), mask)
        q, k = q - middle, k - middle
        lengths = -k.square().sum(dim=-1, keepdim=True) / 2
        return torch.cat([q, torch.ones_like(q[..., :1])], dim=-1), torch.cat([k, lengths], dim=-1), bandwidth**-2

    return Similarity(
        pair=lambda q, k: (-(q - k).square().sum(dim=-1) / (2 * bandwidth**2)).exp(),
        scores=lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(dim=-1) / (2 * bandwidth**2),
        exponential=True,
        theta=theta,
        phi=phi,
        fused=fused,
    )


def _median(k: Tensor, mask: Tensor | None) -> Tensor:
    """Return the median of each feature over the visible keys, (..., 1, d); a mean would follow outliers."""
    m = k.shape[-2]
    if m == 0:
        return torch.zeros_like(k[..., :0, :].sum(dim=-2, keepdim=True))
    if mask is not None:
        visible = mask.expand(*mask.shape[:-1], m)
        visible = visible.any(dim=-2) if visible.ndim > 1 else visible
        k = torch.where(visible.unsqueeze(-1), k, torch.nan)
    return k.nanmedian(dim=-2, keepdim=True).values.nan_to_num(nan=0.0)


def _format(q: Tensor, k: Tensor, v: Tensor) -> str:
    return ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in (("q", q), ("k", k), ("v", v)))


def apply_maps(
    q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, value: Map | None, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return theta(q), phi(k) and g(v). Raise unless the operands fit, before and after the maps."""
    if min(q.ndim, k.ndim, v.ndim) < 2 or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ShapeError(
            "expected q (..., n, p), k (..., m, d), v (..., m, c) with equal leading shape and m; got "
            + _format(q, k, v)
        )
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise InputError(f"expected q, k and v of one floating dtype; got {_format(q, k, v)}")
    theta, phi = similarity.embedded(q, k)
    if theta.shape[-1] != phi.shape[-1]:
        got = f"theta(q) {tuple(theta.shape)}, phi(k) {tuple(phi.shape)} from {_format(q, k, v)}"
        raise ShapeError(f"expected theta(q) and phi(k) of one width; got {got}")
    v = v if value is None else value(v)
    check_attention_operands(theta, phi, v, mask=mask, bias=bias)
    return theta, phi, v


def general_attention(
    q: Float[Tensor, "*b n p"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m c"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    scale: float | None = None,
    similarity: Similarity | None = None,
    value: Map | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Return the sum of the values, weighted by the similarity of key and query and normalised.

    .. math:: o_j = \frac{1}{C_j} \sum_i f(q_j, k_i)\, g(v_i), \qquad
        C_j = \sum_i f(q_j, k_i) \ \text{or}\ m

    mask: True where a query may attend, broadcasts to (..., n, m); sums run over the visible keys, and m counts those.
        A query without visible keys gets zeros, whatever keys and values hold
    scale: of the default similarity, 1 if None; not allowed with `similarity`, which has its own
    similarity: f with its C; `gaussian(scale=scale)` if None
    value: g, linear or not; the identity if None
    bias: added to log f if f is exponential, to f if not

    Exponential similarities run on torch's fused kernel. NaN and infinity propagate: in q to its own row of the output,
    in k and v to every row that sees them. A mask does not stop them (zero times infinity is NaN): put zeros where keys
    and values are hidden.
    """
    similarity = _default_similarity(similarity, scale)
    q, k, v = apply_maps(q, k, v, similarity, value, mask, bias)
    if similarity.fused is not None:
        q, k, scale = similarity.fused(q, k, mask)
        return softmax_attention(q, k, v.to(q.dtype), mask=mask, bias=bias, scale=scale).to(v.dtype)
    return run_within_memory(
        partial(_with_scores, q, k, v, similarity, mask, bias),
        task="attention with this similarity, which stores all scores,",
        remedy="pass fewer tokens at once, or a similarity such as gaussian(), which stores none",
        device=q.device,
        needed=bytes_of_matrices((*q.shape[:-1], k.shape[-2]), torch.promote_types(v.dtype, torch.float32)),
    )


def slow_general_attention(
    q: Float[Tensor, "*b n p"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m c"],
    *,
    similarity: Similarity | None = None,
    value: Map | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    """Compute `general_attention` by equation (1), one query and one key at a time."""
    similarity = gaussian() if similarity is None else similarity
    q, k, v = apply_maps(q, k, v, similarity, value, mask, bias)
    *batch, n, m = *q.shape[:-1], k.shape[-2]
    visible = torch.ones(1, 1, dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*batch, n, m)
    added = None if bias is None else bias.expand(*batch, n, m)
    rows = []
    for j in range(n):
        total, normaliser = torch.zeros_like(v[..., :1, :].sum(dim=-2)), torch.zeros_like(q[..., :1].sum(dim=-2))
        for i in range(m):
            weight = similarity.pair(q[..., j, :], k[..., i, :])
            if added is not None:
                weight = weight * added[..., j, i].exp() if similarity.exponential else weight + added[..., j, i]
            pair_visible = visible[..., j, i].unsqueeze(-1)
            weight = torch.where(pair_visible, weight.unsqueeze(-1), 0)
            total = total + weight * v[..., i, :]
            normaliser = normaliser + (weight if similarity.exponential else pair_visible.to(q.dtype))
        rows.append(torch.where(normaliser != 0, total / torch.where(normaliser != 0, normaliser, 1), 0).to(v.dtype))
    return torch.stack(rows, dim=-2) if rows else v.new_zeros(*batch, 0, v.shape[-1])


def _with_scores(
    q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    wide = torch.promote_types(v.dtype, torch.float32)
    scores = similarity.scores(q.to(wide), k.to(wide))
    scores = scores if bias is None else scores + bias
    if similarity.exponential:
        # Softmax attention accepts any scores, as a bias on queries and keys of zeros.
        zeros = torch.zeros_like(q[..., :1]), torch.zeros_like(k[..., :1])
        return softmax_attention(*zeros, v, mask=mask, bias=scores, scale=1.0)
    return _divide_by_count(scores, v, mask)


def _default_similarity(similarity: Similarity | None, scale: float | None) -> Similarity:
    if similarity is None:
        return gaussian(scale=1.0 if scale is None else scale)
    if scale is not None:
        raise InputError(f"expected the scale inside the similarity, such as gaussian(scale={scale}); got both")
    return similarity


def _divide_by_count(weights: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return ((weights / max(v.shape[-2], 1)) @ v.to(weights.dtype)).to(v.dtype)
    count = mask.expand(*mask.shape[:-1], v.shape[-2]).sum(dim=-1, keepdim=True)
    out = (torch.where(mask, weights, 0) / count.clamp_min(1)) @ v.to(weights.dtype)
    return torch.where(count > 0, out, 0).to(v.dtype)
