"""Theorem 1 of Teo and Nguyen 2024: the axes that attention projects on, for the theorem's values and for any others.

The rows of K, Q and V are k_j, q_i and v_j; a_d is the eigenvector of axis d, u_d the axis itself.
"""

import numpy as np
import torch
from torch import Tensor

from clearhead.operators.kernel_pca import kernel_pca
from clearhead.operators.kernel_pca_attention import kernel_pca_attention
from clearhead.operators.softmax import slow_softmax_attention, softmax_attention
from clearhead.theories.kernel_pca.spans import captured_variance
from clearhead_lab.theorems.kernel_pca.example import (
    AXES,
    Example,
    attend,
    kernel_pca_theorem,
    largest_relative_error,
)


def _kernel_average(e: Example, *, scale: float | None = None) -> float:
    """Compare attention at `scale` with the loop over sum_j k(q_i, k_j) v_j / g(q_i) at the example's scale."""
    attended = softmax_attention(e.q, e.k, e.v, scale=e.scale if scale is None else scale)
    return largest_relative_error(attended, slow_softmax_attention(e.q, e.k, e.v, scale=e.scale))


def _projections(e: Example, values: Tensor) -> float:
    """Compare attention over the values with the projections <phi(q_i), u_d> on the principal axes."""
    return largest_relative_error(attend(e, values), e.phi_q @ e.principal_axes(), up_to_sign=True)


def _values_with_wrong_index(e: Example) -> Tensor:
    """Return the values with g at the summed index: (1/N) sum_j' a_dj' / g(k_j') is subtracted."""
    scaled_a = e.theorem_values()
    return scaled_a - scaled_a.mean(dim=0)


def _any_values(e: Example, weights: Tensor) -> float:
    """Compare attention over random values with <phi(q_i), sum_j w_j v_jd phi(k_j)>; the theorem has w_j = g(k_j)."""
    return largest_relative_error(attend(e, e.v), e.phi_q @ (e.phi_k.T @ (weights[:, None] * e.v)))


def _products_of_axes(e: Example, kernel: Tensor) -> float:
    """Compare V^T K V with the inner products of the axes u_d = sum_j g(k_j) v_jd phi(k_j)."""
    u = e.phi_k.T @ (e.g_k[:, None] * e.v)
    return largest_relative_error(e.v.T @ kernel @ e.v, u.T @ u)


def _raw_kernel(e: Example) -> Tensor:
    return (e.scale * e.k @ e.k.T).exp()


def _variance_not_captured(e: Example, values: Tensor) -> float:
    return float(1 - captured_variance(e.k, values, scale=e.scale))


def _captured_variance_change(e: Example, values: Tensor) -> float:
    """Return the relative change of the captured variance when the example's values are replaced."""
    changed, original = (captured_variance(e.k, v, scale=e.scale) for v in (values, e.v))
    return float((changed - original).abs() / original)


def _mixed_values(e: Example) -> Tensor:
    """Return V M for a random square M."""
    mix = torch.randn(AXES, AXES, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return e.v @ mix.to(e.v.dtype)


def _kernel_pca_attention(e: Example, *, center_queries: bool, mask: Tensor | None = None) -> Tensor:
    return kernel_pca_attention(e.q, e.k, axes=AXES, scale=e.scale, center_queries=center_queries, mask=mask)


def _centred_projections(e: Example, *, center_queries: bool) -> float:
    """Compare with <phi(q_i) - mean_j phi(k_j), u_d>, the projections of textbook kernel PCA."""
    expected = (e.phi_q - e.phi_k.mean(dim=0)) @ e.principal_axes()
    return largest_relative_error(_kernel_pca_attention(e, center_queries=center_queries), expected, up_to_sign=True)


def _by_scikit_learn(e: Example) -> Tensor:
    from sklearn.decomposition import KernelPCA

    g_q = (e.scale * e.q @ e.k.T).double().exp().sum(dim=-1)
    g_k = (e.scale * e.k @ e.k.T).double().exp().sum(dim=-1)
    of_keys = (e.scale * e.k @ e.k.T).double().exp() / g_k[:, None] / g_k
    of_queries = (e.scale * e.q @ e.k.T).double().exp() / g_q[:, None] / g_k
    model = KernelPCA(n_components=AXES, kernel="precomputed", eigen_solver="dense").fit(of_keys.numpy())
    return torch.from_numpy(np.asarray(model.transform(of_queries.numpy()))).to(e.q.dtype)


def _scikit_learn(e: Example, *, center_queries: bool) -> float:
    actual = _kernel_pca_attention(e, center_queries=center_queries)
    return largest_relative_error(actual, _by_scikit_learn(e), up_to_sign=True)


def _causal(e: Example) -> Tensor:
    return torch.ones(len(e.q), len(e.k), dtype=torch.bool).tril()


def _prefix_projections(e: Example, attended: Tensor) -> float:
    """Compare row i with kernel PCA of the keys up to i alone, for the rows with more than `AXES` keys."""
    largest = 0.0
    for i in range(AXES + 1, len(e.q)):
        prefix_values = kernel_pca(e.k[: i + 1], axes=AXES, scale=e.scale).values.to(e.k.dtype)
        expected = softmax_attention(e.q[i : i + 1], e.k[: i + 1], prefix_values, scale=e.scale)
        largest = max(largest, largest_relative_error(attended[i : i + 1], expected, up_to_sign=True))
    return largest


def _prefix_values(e: Example) -> float:
    return _prefix_projections(e, _kernel_pca_attention(e, center_queries=False, mask=_causal(e)))


def _same_values_for_all_rows(e: Example) -> float:
    attended = softmax_attention(e.q, e.k, e.theorem_values(), scale=e.scale, mask=_causal(e))
    return _prefix_projections(e, attended)


AXES_THEOREMS = (
    kernel_pca_theorem(
        "K1", "softmax attention is the kernel-weighted average of the values", _kernel_average,
        "scale left out", lambda e: _kernel_average(e, scale=1.0), "setting of theorem 1",
    ),
    kernel_pca_theorem(
        "K2", "with the theorem's values, attention projects the queries on the keys' principal axes",
        lambda e: _projections(e, e.theorem_values()),
        "g taken at the summed index", lambda e: _projections(e, _values_with_wrong_index(e)), "theorem 1",
    ),
    kernel_pca_theorem(
        "K3", "with any values V, attention projects on the axes u_d = sum_j g(k_j) v_jd phi(k_j)",
        lambda e: _any_values(e, e.g_k),
        "keys not weighted by g", lambda e: _any_values(e, torch.ones_like(e.g_k)),
        "theorem 1, for any values",
    ),
    kernel_pca_theorem(
        "K4", "the inner products of these axes are V^T K V, where K is the kernel matrix of the keys",
        lambda e: _products_of_axes(e, _raw_kernel(e)),
        "K divided by g", lambda e: _products_of_axes(e, e.phi_k @ e.phi_k.T), "theorem 1, for any values",
    ),
    kernel_pca_theorem(
        "K5", "the theorem's values capture the largest variance that D axes can capture",
        lambda e: _variance_not_captured(e, e.theorem_values()),
        "random values", lambda e: _variance_not_captured(e, e.v), "theorem 1",
    ),
    kernel_pca_theorem(
        "K6", "captured variance does not change if V is multiplied by an invertible matrix",
        lambda e: _captured_variance_change(e, _mixed_values(e)),
        "values assigned to other tokens", lambda e: _captured_variance_change(e, e.v.roll(1, dims=0)), "theorem 1",
    ),
    kernel_pca_theorem(
        "K7", "centring the queries shifts all projections on an axis by the same number",
        lambda e: _centred_projections(e, center_queries=True),
        "queries not centred", lambda e: _centred_projections(e, center_queries=False),
        "theorem 1, with queries centred as in textbooks",
    ),
    kernel_pca_theorem(
        "K8", "scikit-learn's KernelPCA gives the same projections", lambda e: _scikit_learn(e, center_queries=True),
        "queries not centred", lambda e: _scikit_learn(e, center_queries=False),
        "theorem 1, with queries centred as in textbooks", requires="scikit-learn",
    ),
    kernel_pca_theorem(
        "K9", "under a causal mask, row i projects on the principal axes of the keys up to i", _prefix_values,
        "the same values for all rows", _same_values_for_all_rows, "theorem 1, for every prefix of the keys",
    ),
)  # fmt: skip
