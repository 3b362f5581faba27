r"""The centred Gram matrix of keys under the normalised exponential kernel, in log space.

With the source's symbols (Teo and Nguyen 2024, section 2): k(x, y) = exp(s x.y), g(x) = sum_j k(x, k_j) over the keys,
k_phi(x, y) = k(x, y) / (g(x) g(y)), and the Gram matrix of the centred features is H K_phi H with H = I - 1 1^T / N.
Entries of K_phi are as small as exp(-hundreds), so they are divided by the largest, whose logarithm is stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.numerics.precision import machine_epsilon
from clearhead.shapes import Bool, Float


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
