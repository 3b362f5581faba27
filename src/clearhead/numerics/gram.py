r"""The centred Gram matrix of keys under the normalised exponential kernel, in log space.

With the source's symbols (Teo and Nguyen 2024, section 2): k(x, y) = exp(s x.y), g(x) = sum_j k(x, k_j) over the keys,
k_phi(x, y) = k(x, y) / (g(x) g(y)), and the Gram matrix of the centred features is H K_phi H with H = I - 1 1^T / N.
Entries of K_phi are as small as exp(-hundreds), so they are divided by the largest, whose logarithm is stored.

`TiledGram` multiplies with the matrix without storing it. [K_phi]_ij = exp(s k_i.k_j - l_i - l_j), l = log g, is the
exponential of an inner product of extended keys (s k_i, -l_i, 1) and (k_j, 1, -l_j). Tiles that fit the cache are
computed once and used for two products, since K is symmetric. Exponents are at most zero, so nothing overflows. Tiles
are distributed over threads, each with sums of its own, which are added in a fixed order.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.partial import leading_eigenpairs
from clearhead.numerics.precision import machine_epsilon
from clearhead.numerics.threads import one_thread_each
from clearhead.shapes import Bool, Float, ShapeError, check_finite


@dataclass(frozen=True, slots=True, kw_only=True)
class GramScales:
    """Scales and sums of K_phi."""

    log_scale: Float[Tensor, "*b"]
    """Logarithm of the largest entry of K_phi, which is on its diagonal; zero without keys."""
    log_g: Float[Tensor, "*b m"]
    """log g(k_j); zero at hidden keys."""
    column_mean: Float[Tensor, "*b m"]
    """Mean over the rows of K_phi exp(-log_scale), before centring."""
    trace: Float[Tensor, "*b"]
    """Trace of H K_phi H exp(-log_scale): the variance of the keys."""
    rounding: Float[Tensor, "*b"]
    """Rounding error of an eigenvalue of H K_phi H exp(-log_scale): 4 eps (m + max|s k.k|) times the trace of
    K_phi exp(-log_scale). A score of size |s| has a rounding error of eps |s|, and its exponential a relative error of
    the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CentredGram:
    """H K_phi H exp(-log_scale), with rows and columns of zeros at hidden keys."""

    matrix: Float[Tensor, "*b m m"]
    scales: GramScales


def centred_gram(
    k: Float[Tensor, "*b m d"], *, scale: float, visible: Bool[Tensor, "*b m"] | None = None
) -> CentredGram:
    """Return the centred Gram matrix of the visible keys in the dtype of k.

    Nothing overflows: every exponent is at most zero. An entry whose logarithm is more than about 700 below the largest
    is zero in float64 and negligible in any eigenvector with variance. The matrix is symmetric up to rounding; solvers
    read one half of it.
    """
    m = k.shape[-2]
    # Without a derivative every operation is in place: new memory costs more than the arithmetic.
    less = Tensor.sub if torch.is_grad_enabled() and k.requires_grad else Tensor.sub_
    pairs_visible = None
    if visible is not None:
        k = k.masked_fill(~visible.unsqueeze(-1), 0)
        pairs_visible = visible.unsqueeze(-1) & visible.unsqueeze(-2)
    scores = counted = (scale * k) @ k.mT
    if visible is not None:
        # Where no key is visible all enter the sum: logsumexp of nothing has no gradient.
        counted_keys = visible | ~visible.any(dim=-1, keepdim=True)
        counted = scores.masked_fill(~counted_keys.unsqueeze(-2), -torch.inf)
    log_g = torch.logsumexp(counted, dim=-1)
    log_diagonal = scores.diagonal(dim1=-2, dim2=-1) - 2 * log_g
    if visible is not None:
        log_g, log_diagonal = log_g.masked_fill(~visible, 0), log_diagonal.masked_fill(~visible, -torch.inf)
    log_scale = log_diagonal.detach().amax(dim=-1) if m else log_diagonal.detach().sum(dim=-1)
    log_scale = torch.where(log_scale.isfinite(), log_scale, 0)
    log_factor = log_g + log_scale.unsqueeze(-1) / 2
    log_gram = less(less(scores, log_factor.unsqueeze(-1)), log_factor.unsqueeze(-2))
    log_gram = log_gram if pairs_visible is None else log_gram.masked_fill(~pairs_visible, -torch.inf)
    gram = log_gram.exp() if less is Tensor.sub else log_gram.exp_()
    count = max(m, 1) if visible is None else visible.sum(dim=-1, keepdim=True).clamp_min(1)
    column_mean = gram.sum(dim=-2) / count
    mean = column_mean.sum(dim=-1, keepdim=True) / count
    trace = gram.detach().diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    centred = less(less(gram, column_mean.unsqueeze(-1)), (column_mean - mean).unsqueeze(-2))
    length = scale * k.detach().square().sum(dim=-1)
    largest = length.amax(dim=-1) if m else length.sum(dim=-1)
    matrix = centred if pairs_visible is None else centred.masked_fill(~pairs_visible, 0)
    scales = GramScales(
        log_scale=log_scale,
        log_g=log_g,
        column_mean=column_mean,
        trace=matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1),
        rounding=4 * machine_epsilon(k.dtype) * (m + largest) * trace,
    )
    return CentredGram(matrix=matrix, scales=scales)


TILE = 2**20
"""Bytes of a tile."""
SHARES = 8
"""Number of partial sums of a product, whatever the number of threads, so that results are the same to the bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledGram:
    """H K_phi H exp(-log_scale) of one set of keys, as an operator."""

    left: Float[Tensor, "m c"]
    right: Float[Tensor, "m c"]
    scales: GramScales

    def product(self, x: Float[Tensor, "m r"]) -> Float[Tensor, "m r"]:
        """Return H K_phi H x exp(-log_scale)."""
        out = self.uncentred_product(x - x.mean(dim=0))
        return out.sub_(out.mean(dim=0))

    def uncentred_product(self, x: Float[Tensor, "m r"]) -> Float[Tensor, "m r"]:
        """Return K_phi x exp(-log_scale)."""
        return _product(self.left, self.right, x)

    def guess(self, count: int, *, landmarks: int = 512) -> Float[Tensor, "m r"]:
        """Estimate the leading eigenvectors from a sample of the keys (Nystroem's method).

        Half of the sample are the keys with the longest features, half are evenly spaced among the others.
        """
        m = len(self.left)
        log_length = (self.left * self.right).sum(dim=-1)
        order = log_length.argsort(descending=True, stable=True)
        half = min(landmarks // 2, m)
        others = order[half:]
        sample = torch.cat([order[:half], others[:: max(1, math.ceil(len(others) / max(landmarks - half, 1)))]])
        columns = (self.left @ self.right[sample].mT).exp_()
        small = columns[sample] - columns[sample].mean(dim=0)
        small = small - small.mean(dim=1, keepdim=True)
        vectors = leading_eigenpairs(small.double()[None], min(count, len(sample) - 1)).vectors[0].to(columns)
        estimate = (columns - columns.mean(dim=0)) @ vectors
        return (
            estimate
            if estimate.shape[1] == count
            else torch.cat([estimate, _noise(m, count - estimate.shape[1], estimate)], dim=1)
        )


def _noise(m: int, count: int, like: Tensor) -> Tensor:
    return torch.randn(m, count, generator=torch.Generator().manual_seed(0)).to(like)


def tiled_gram(k: Float[Tensor, "m d"], *, scale: float) -> TiledGram:
    """Return the operator of keys in single or double precision; its products have the same precision."""
    m = len(k)
    if m == 0:
        raise ShapeError("expected at least one key; got none")
    check_finite("keys", k)
    log_g = _log_sums(k, scale)
    length = scale * k.square().sum(dim=-1)
    log_diagonal = length - 2 * log_g
    log_scale = log_diagonal.max()
    log_factor = -log_g - log_scale / 2
    ones = torch.ones_like(log_factor)
    left, right = torch.stack([log_factor, ones], dim=-1), torch.stack([ones, log_factor], dim=-1)
    left, right = torch.cat([scale * k, left], dim=-1), torch.cat([k, right], dim=-1)
    column_mean = _product(left, right, torch.ones_like(log_factor).unsqueeze(-1)).squeeze(-1) / m
    diagonal = (log_diagonal - log_scale).exp()
    eps = machine_epsilon(k.dtype)
    scales = GramScales(
        log_scale=log_scale.double(),
        log_g=log_g.double(),
        column_mean=column_mean.double(),
        trace=diagonal.double().sum() - column_mean.double().sum(),
        rounding=(4 * eps * (1 + length.max()) * m * column_mean.max()).double(),
    )
    return TiledGram(left=left, right=right, scales=scales)


def _log_sums(k: Tensor, scale: float) -> Tensor:
    """Return log g, a few rows at a time in one buffer per share: new buffers would cost page faults."""
    m = len(k)
    rows = max(1, 4 * TILE // (k.element_size() * max(m, 1)))

    def sums(share: Tensor) -> Tensor:
        log_g, buffer = k.new_empty(len(share)), k.new_empty(rows, m)
        for i in range(0, len(share), rows):
            scores = torch.mm(scale * share[i : i + rows], k.mT, out=buffer[: min(rows, len(share) - i)])
            top = scores.amax(dim=-1)
            log_g[i : i + rows] = scores.sub_(top.unsqueeze(-1)).exp_().sum(dim=-1).log_().add_(top)
        return log_g

    return torch.cat(one_thread_each(sums, list(torch.split(k, max(1, math.ceil(m / SHARES))))))


def _product(left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    m, side = len(left), math.isqrt(TILE // left.element_size())
    least = 0.9 * math.log(torch.finfo(left.dtype).tiny)  # subnormal numbers are slow and negligible
    blocks = [slice(i, min(i + side, m)) for i in range(0, m, side)]

    def sums(share: int) -> Tensor:
        out, tile = torch.zeros_like(x), left.new_empty(side, side)
        # Back and forth over the shares, since the first rows have the most tiles.
        for i in range(len(blocks)):
            if share != min(i % (2 * SHARES), 2 * SHARES - 1 - i % (2 * SHARES)):
                continue
            for j in range(i, len(blocks)):
                rows, columns = left[blocks[i]], right[blocks[j]]
                whole = len(rows) == len(columns) == side
                kernel = torch.mm(rows, columns.mT, out=tile) if whole else rows @ columns.mT
                kernel.clamp_(min=least).exp_()
                out[blocks[i]].addmm_(kernel, x[blocks[j]])
                if j > i:
                    out[blocks[j]].addmm_(kernel.mT, x[blocks[i]])
        return out

    first, *others = one_thread_each(sums, range(min(SHARES, max(len(blocks), 1))))
    for other in others:
        first += other
    return first
