r"""General attention: a weighted mean of transformed values, with the similarity passed as a function.

Ji and Xie, *A Mathematical View of Attention Models in Deep Learning*, equations (1) and (2); the similarities are
those of Wang et al. 2018 (*Non-local Neural Networks*, arXiv 1711.07971, section 3.2), and the distance kernel of
kernel regression. The slides write vectors as columns, O = W_v V softmax((W_k K)^T W_q Q); here tokens are rows. They
print one C for all queries; it depends on the query. They leave 1/sqrt(d) out, and so do the defaults here; `scale`
puts it in.

Names here and there: q_j, k_i, v_i, f, g and C_j are the slides'; `theta` and `phi`, the maps of queries and keys, are
those of Wang et al. and the W_q and W_k of the slides.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.operators.softmax import softmax_attention
from clearhead.shapes import Bool, Float, ShapeError, check_attention_operands

__all__ = [
    "Similarity",
    "concatenation",
    "dot_product",
    "embedded_gaussian",
    "gaussian",
    "gaussian_distance",
    "general_attention",
]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """f(q, k), as a definition on one pair and as a matrix for all, and what the weighted sum is divided by.

    `pair` is the definition: q (..., d) and k (..., d) to f (...). `scores` gives all pairs, (..., n, m): log f if
    `exponential`, else f. An exponential similarity is positive and divided by its sum, C_j = sum_i f(q_j, k_i), so the
    output is a mean of the values. The others may be negative: their sum may vanish, so they are divided by the number
    of keys, C_j = m (Wang et al., section 3.2), and the output is no mean. `theta` and `phi` act on queries and keys
    first. `fused` makes of theta(q), phi(k) and the mask queries, keys and a scale whose softmax attention is the same.
    """

    pair: Callable[[Tensor, Tensor], Tensor]
    scores: Callable[[Tensor, Tensor], Tensor]
    exponential: bool
    theta: Map | None = None
    phi: Map | None = None
    fused: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, float]] | None = None

    def embedded(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """theta(q) and phi(k)."""
        return (q if self.theta is None else self.theta(q)), (k if self.phi is None else self.phi(k))


def gaussian(*, scale: float = 1.0) -> Similarity:
    r"""f(q, k) = exp(scale q.k); no scale by default, as in the sources."""
    return embedded_gaussian(None, None, scale=scale)


def embedded_gaussian(theta: Map | None, phi: Map | None, *, scale: float = 1.0) -> Similarity:
    r"""f(q, k) = exp(scale theta(q).phi(k)): softmax attention, equation (2) with theta = W_q and phi = W_k."""
    return Similarity(
        pair=lambda q, k: (scale * (q * k).sum(dim=-1)).exp(),
        scores=lambda q, k: scale * q @ k.mT,
        exponential=True,
        theta=theta,
        phi=phi,
        fused=lambda q, k, mask: (q, k, scale),
    )


def dot_product(theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""f(q, k) = theta(q).phi(k), divided by the number of keys: the sum changes sign and may vanish."""
    return Similarity(
        pair=lambda q, k: (q * k).sum(dim=-1),
        scores=lambda q, k: q @ k.mT,
        exponential=False,
        theta=theta,
        phi=phi,
    )


def concatenation(weight: Tensor, theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""f(q, k) = ReLU(w.[theta(q); phi(k)]), divided by the number of keys: where all are cut to zero there is no sum.

    `weight` is w, the queries' part first. No pair is ever concatenated: the two parts are added over the grid.
    """

    def pair(q: Tensor, k: Tensor) -> Tensor:
        return torch.relu(torch.cat([q, k], dim=-1) @ weight.to(q.dtype))

    def scores(q: Tensor, k: Tensor) -> Tensor:
        widths = q.shape[-1], k.shape[-1]
        if weight.shape != (sum(widths),):
            got = f"weight {tuple(weight.shape)}, theta(q) {tuple(q.shape)}, phi(k) {tuple(k.shape)}"
            raise ShapeError(f"expected a weight ({sum(widths)},) for theta(q) beside phi(k); got {got}")
        of_query, of_key = weight[: widths[0]].to(q.dtype), weight[widths[0] :].to(k.dtype)
        return torch.relu((q @ of_query).unsqueeze(-1) + (k @ of_key).unsqueeze(-2))

    return Similarity(
        pair=pair,
        scores=scores,
        exponential=False,
        theta=theta,
        phi=phi,
    )


def gaussian_distance(*, bandwidth: float, theta: Map | None = None, phi: Map | None = None) -> Similarity:
    r"""f(q, k) = exp(-|theta(q) - phi(k)|^2 / (2 bandwidth^2)), the kernel of Nadaraya-Watson regression.

    |q|^2 cancels in the quotient, so this is softmax attention with one more feature, 1 beside q and -|k|^2/2 beside k.
    Squares of long keys would swallow the distances, so both are first moved to where the visible keys have their
    median, which no distance notices. The error of log f is then that of the dtype (single precision or better) times
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
    """The median of each feature over the keys that some query may see, (..., 1, d); a mean would follow outliers."""
    m = k.shape[-2]
    if m == 0:
        return torch.zeros_like(k[..., :0, :].sum(dim=-2, keepdim=True))
    if mask is not None:
        seen = mask.expand(*mask.shape[:-1], m)
        seen = seen.any(dim=-2) if seen.ndim > 1 else seen
        k = torch.where(seen.unsqueeze(-1), k, torch.nan)
    return k.nanmedian(dim=-2, keepdim=True).values.nan_to_num(nan=0.0)


def _shown(q: Tensor, k: Tensor, v: Tensor) -> str:
    return ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in (("q", q), ("k", k), ("v", v)))


def apply_maps(
    q: Tensor, k: Tensor, v: Tensor, similarity: Similarity, value: Map | None, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """theta(q), phi(k) and g(v), if they belong together, before the maps and after them."""
    if min(q.ndim, k.ndim, v.ndim) < 2 or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ShapeError(
            "expected q (..., n, p), k (..., m, d), v (..., m, c), one leading shape, one m; got " + _shown(q, k, v)
        )
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise InputError(f"expected q, k and v of one floating dtype; got {_shown(q, k, v)}")
    theta, phi = similarity.embedded(q, k)
    if theta.shape[-1] != phi.shape[-1]:
        got = f"theta(q) {tuple(theta.shape)}, phi(k) {tuple(phi.shape)} from {_shown(q, k, v)}"
        raise ShapeError(f"expected theta(q) and phi(k) of one width; got {got}")
    v = v if value is None else value(v)
    check_attention_operands(theta, phi, v, mask=mask, bias=bias)
    return theta, phi, v


def general_attention(
    q: Float[Tensor, "*b n p"],
    k: Float[Tensor, "*b m d"],
    v: Float[Tensor, "*b m c"],
    *,
    similarity: Similarity | None = None,
    value: Map | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b n e"]:
    r"""Weigh the values by how alike their keys are to the query, and divide.

    .. math:: o_j = \frac{1}{C_j} \sum_i f(q_j, k_i)\, g(v_i), \qquad
        C_j = \sum_i f(q_j, k_i) \ \text{or}\ m

    `similarity` is f with its C (Gaussian by default), `value` is g (the identity by default; linear or not). The sums
    run over the keys that `mask` leaves visible, and m counts those; a query that sees none gets zeros. `bias` is added
    to log f where f is an exponential, else to f. Exponential similarities run on torch's fused kernel.

    What is not finite is propagated, never refused: in q it spoils its own row of the output, in k and v every row that
    sees it. A mask is no shield (zero times infinity is not a number): put zeros where keys and values are hidden.
    """
    similarity = gaussian() if similarity is None else similarity
    q, k, v = apply_maps(q, k, v, similarity, value, mask, bias)
    if similarity.fused is not None:
        q, k, scale = similarity.fused(q, k, mask)
        return softmax_attention(q, k, v.to(q.dtype), mask=mask, bias=bias, scale=scale).to(v.dtype)
    wide = torch.promote_types(v.dtype, torch.float32)
    scores = similarity.scores(q.to(wide), k.to(wide))
    scores = scores if bias is None else scores + bias
    if similarity.exponential:
        # Softmax attention takes any scores, as a bias on queries and keys that say nothing.
        silent = torch.zeros_like(q[..., :1]), torch.zeros_like(k[..., :1])
        return softmax_attention(*silent, v, mask=mask, bias=scores, scale=1.0)
    return _divided_by_count(scores, v, mask)


def _divided_by_count(weights: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        visible: Tensor | float = float(max(v.shape[-2], 1))
    else:
        weights = torch.where(mask, weights, 0)
        visible = mask.expand(*mask.shape[:-1], v.shape[-2]).sum(dim=-1, keepdim=True).clamp_min(1)
    return ((weights / visible) @ v.to(weights.dtype)).to(v.dtype)
