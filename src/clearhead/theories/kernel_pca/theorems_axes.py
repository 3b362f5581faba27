"""Theorem 1: which axes attention projects on, for the theorem's values and for any others."""

import importlib.util

import numpy as np
import torch
from torch import Tensor

from clearhead.operators.kernel_pca import kernel_pca
from clearhead.operators.kernel_pca_attention import kernel_pca_attention
from clearhead.operators.softmax import softmax_attention, softmax_attention_slow
from clearhead.theories.kernel_pca.spans import captured_variance
from clearhead.theories.kernel_pca.statement import AXES, Drawn, Statement, apart, attend

__all__ = ["AXES_STATEMENTS"]


def _twin(d: Drawn) -> float:
    return apart(attend(d, d.v), softmax_attention_slow(d.q, d.k, d.v, scale=d.scale))


def _unscaled(d: Drawn) -> float:
    return apart(softmax_attention(d.q, d.k, d.v, scale=1.0), softmax_attention_slow(d.q, d.k, d.v, scale=d.scale))


def _theorem_1(d: Drawn) -> float:
    return apart(attend(d, d.theorem_values()), d.phi_q @ d.axes(), signs=True)


def _wrong_index(d: Drawn) -> float:
    """The variant of the formula with g of the summed index: (1/N) sum_j' a_dj' / g(k_j') is subtracted instead."""
    scaled_a = d.theorem_values()
    return apart(attend(d, scaled_a - scaled_a.mean(dim=0)), d.phi_q @ d.axes(), signs=True)


def _any_values(d: Drawn) -> float:
    return apart(attend(d, d.v), d.phi_q @ (d.phi_k.T @ (d.g_k[:, None] * d.v)))


def _any_values_unweighted(d: Drawn) -> float:
    return apart(attend(d, d.v), d.phi_q @ (d.phi_k.T @ d.v))


def _products_of_axes(d: Drawn, kernel: Tensor) -> float:
    u = d.phi_k.T @ (d.g_k[:, None] * d.v)
    return apart(d.v.T @ kernel @ d.v, u.T @ u)


def _raw_kernel(d: Drawn) -> Tensor:
    return (d.scale * d.k @ d.k.T).exp()


def _captures_all(d: Drawn) -> float:
    return float(1 - captured_variance(d.k, d.theorem_values(), scale=d.scale))


def _random_captures(d: Drawn) -> float:
    return float(1 - captured_variance(d.k, d.v, scale=d.scale))


def _mix_invariant(d: Drawn) -> float:
    mix = torch.randn(AXES, AXES, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(d.v.dtype)
    mixed, plain = (captured_variance(d.k, v, scale=d.scale) for v in (d.v @ mix, d.v))
    return float((mixed - plain).abs() / plain)


def _other_values(d: Drawn) -> float:
    other, plain = (captured_variance(d.k, v, scale=d.scale) for v in (d.v.roll(1, dims=0), d.v))
    return float((other - plain).abs() / plain)


def _centred_queries(d: Drawn) -> float:
    found = kernel_pca_attention(d.q, d.k, axes=AXES, scale=d.scale, center_queries=True)
    return apart(found, (d.phi_q - d.phi_k.mean(dim=0)) @ d.axes(), signs=True)


def _uncentred_queries(d: Drawn) -> float:
    found = kernel_pca_attention(d.q, d.k, axes=AXES, scale=d.scale)
    return apart(found, (d.phi_q - d.phi_k.mean(dim=0)) @ d.axes(), signs=True)


def _needs_scikit_learn() -> str:
    return "" if importlib.util.find_spec("sklearn") else "scikit-learn"


def _by_scikit_learn(d: Drawn) -> Tensor:
    from sklearn.decomposition import KernelPCA

    g_q = (d.scale * d.q @ d.k.T).double().exp().sum(dim=-1)
    g_k = (d.scale * d.k @ d.k.T).double().exp().sum(dim=-1)
    of_keys = (d.scale * d.k @ d.k.T).double().exp() / g_k[:, None] / g_k
    of_queries = (d.scale * d.q @ d.k.T).double().exp() / g_q[:, None] / g_k
    model = KernelPCA(n_components=AXES, kernel="precomputed", eigen_solver="dense").fit(of_keys.numpy())
    return torch.from_numpy(np.asarray(model.transform(of_queries.numpy()))).to(d.q.dtype)


def _agrees_with_scikit_learn(d: Drawn) -> float:
    found = kernel_pca_attention(d.q, d.k, axes=AXES, scale=d.scale, center_queries=True)
    return apart(found, _by_scikit_learn(d), signs=True)


def _scikit_learn_uncentred(d: Drawn) -> float:
    found = kernel_pca_attention(d.q, d.k, axes=AXES, scale=d.scale)
    return apart(found, _by_scikit_learn(d), signs=True)


def _prefix_rows(d: Drawn, attended: Tensor) -> float:
    """Against kernel PCA of each prefix of the keys by itself, for the rows whose prefix has all the axes."""
    rows = range(AXES + 1, len(d.q))
    worst = 0.0
    for i in rows:
        alone = kernel_pca(d.k[: i + 1], axes=AXES, scale=d.scale).values.to(d.k.dtype)
        expected = softmax_attention(d.q[i : i + 1], d.k[: i + 1], alone, scale=d.scale)
        worst = max(worst, apart(attended[i : i + 1], expected, signs=True))
    return worst


def _prefix_form(d: Drawn) -> float:
    causal = torch.ones(len(d.q), len(d.k), dtype=torch.bool).tril()
    return _prefix_rows(d, kernel_pca_attention(d.q, d.k, axes=AXES, scale=d.scale, mask=causal))


def _one_value_for_all(d: Drawn) -> float:
    causal = torch.ones(len(d.q), len(d.k), dtype=torch.bool).tril()
    return _prefix_rows(d, softmax_attention(d.q, d.k, d.theorem_values(), scale=d.scale, mask=causal))


AXES_STATEMENTS = (
    Statement("K1", "softmax attention is the kernel average of the values", _twin,
              "scale left out", _unscaled, "setting of theorem 1"),
    Statement("K2", "with the theorem's values, attention projects on the keys' principal axes", _theorem_1,
              "g taken at the summed index", _wrong_index, "theorem 1"),
    Statement("K3", "with any values, attention projects on some axes", _any_values,
              "keys not weighted by g", _any_values_unweighted, "theorem 1, for values of any kind"),
    Statement("K4", "the products of those axes are V'KV, K the kernel on the keys",
              lambda d: _products_of_axes(d, _raw_kernel(d)),
              "K divided by g", lambda d: _products_of_axes(d, d.phi_k @ d.phi_k.T),
              "theorem 1, for values of any kind"),
    Statement("K5", "the theorem's values capture all that so many axes can", _captures_all,
              "random values", _random_captures, "theorem 1"),
    Statement("K6", "captured variance does not change when values are mixed", _mix_invariant,
              "values moved to other tokens", _other_values, "theorem 1"),
    Statement("K7", "centred queries move every projection by one number per axis", _centred_queries,
              "queries not centred", _uncentred_queries, "theorem 1, with queries centred as in textbooks"),
    Statement("K8", "scikit-learn's KernelPCA gives the same projections", _agrees_with_scikit_learn,
              "queries not centred", _scikit_learn_uncentred, "theorem 1, with queries centred as in textbooks",
              needs=_needs_scikit_learn),
    Statement("K9", "under a causal mask each row projects on the axes of its own prefix", _prefix_form,
              "one V for all rows", _one_value_for_all, "theorem 1, for every prefix of the keys"),
)  # fmt: skip
