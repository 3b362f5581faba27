"""Remarks 1 to 3 of Teo and Nguyen 2024, bounds on the spectrum, and the projection loss.

N is the number of keys, 1_N the N x N matrix with entries 1/N, A the matrix of eigenvectors a_d, G = diag(1 / g(k_j)).
"""

import torch
from torch import Tensor

from clearhead.operators.kernel_pca import kernel_pca
from clearhead.theories.kernel_pca.loss import explained_fraction, log_output_square, log_true_loss, queries_in_space
from clearhead.theories.kernel_pca.space import key_space
from clearhead.theories.kernel_pca.spans import span_of
from clearhead_lab.theorems.kernel_pca.example import (
    AXES,
    KEYS,
    Example,
    centred_gram,
    kernel_pca_theorem,
    largest_relative_error,
)

VANISHING = 1e-18
"""A distance of I - (1 - eps) 1_N from the singular I - 1_N that cannot be distinguished from zero."""


def _averaging(e: Example) -> Tensor:
    """Return 1_N."""
    return torch.full((KEYS, KEYS), 1 / KEYS, dtype=e.k.dtype)


def _centring(e: Example, *, last_term: bool) -> float:
    """Compare K - 1_N K - K 1_N + 1_N K 1_N, K the kernel over g, with the Gram matrix of the centred phi(k_j)."""
    gram = (e.scale * e.k @ e.k.T).exp() / e.g_k[:, None] / e.g_k
    mean = _averaging(e)
    centred = gram - mean @ gram - gram @ mean
    return largest_relative_error(centred + mean @ gram @ mean if last_term else centred, centred_gram(e))


def _eigenvalues(e: Example, *, factor: int) -> float:
    """Compare the operator's eigenvalues with `factor` times those of the covariance of phi(k_j)."""
    pca = e.kernel_pca()
    covariance = (e.centred_phi.T @ e.centred_phi / KEYS).double()
    expected = factor * torch.linalg.eigvalsh(covariance).flip(-1)[:AXES]
    return largest_relative_error(pca.energy * pca.log_scale.exp(), expected)


def _column_sums(a: Tensor) -> float:
    """Return the largest |sum_j a_dj|, relative to the largest sum_j |a_dj|."""
    return float(a.sum(dim=0).abs().max() / a.abs().sum(dim=0).max())


def _uncentred_eigenvectors(e: Example) -> Tensor:
    _, vectors = torch.linalg.eigh(e.phi_k @ e.phi_k.T)
    leading: Tensor = vectors.flip(-1)[:, :AXES]
    return leading


def _trace_excess(e: Example, gram: Tensor) -> float:
    """Return by how much the trace exceeds sum_j exp(-s |k_j|^2), relative to this bound."""
    bound = (-e.scale * e.k.square().sum(dim=-1)).exp().sum()
    return float(((gram.trace() - bound) / bound).clamp_min(0))


def _eigenvalue_with_repeated_keys(e: Example, index: int) -> float:
    """Return the eigenvalue of this index relative to the first, for keys of which every one occurs twice."""
    distinct = KEYS // 2
    pca = kernel_pca(torch.cat([e.k[:distinct]] * 2), axes=index + 1, scale=e.scale)
    return float(pca.energy[index] / pca.energy[0])


def _scaling(e: Example) -> Tensor:
    """Return S = G 1_N G^-1."""
    return _averaging(e) * e.g_k / e.g_k[:, None]


def _value_scaling(e: Example, scaling: Tensor) -> float:
    """Compare (I - S) G A with G (A - 1_N A), for an A whose columns do not sum to zero."""
    a = e.v + 1
    v_hat = a / e.g_k[:, None]
    return largest_relative_error(v_hat - scaling @ v_hat, (a - a.mean(dim=0)) / e.g_k[:, None])


def _idempotence(s: Tensor) -> float:
    return largest_relative_error(s @ s, s)


def _row_sums(e: Example, s: Tensor) -> float:
    return largest_relative_error(s.sum(dim=-1), e.g_k.mean() / e.g_k)


def _scaled_values(e: Example, v_hat: Tensor) -> float:
    """Return the largest entry of S V-hat, relative to that of V-hat = G A."""
    return float((_scaling(e) @ v_hat).abs().max() / v_hat.abs().max())


def _loss_difference(e: Example, v: Tensor) -> float:
    """Return |J_published - J_true| / mean_i |phi(q_i)|^2 for attention of the queries over the values."""
    space = key_space(e.k, scale=e.scale)
    queries = queries_in_space(space, e.q.unsqueeze(-3))
    total = queries.log_mean_square.exp()
    true = log_true_loss(queries, explained_fraction(queries, span_of(space, v))).exp()
    return float(((total - log_output_square(queries, v).exp() - true) / total).abs().max())


def _true_loss_below_zero(e: Example) -> float:
    """Return how far |phi(q)|^2 - h^T (V^T K V)^+ h falls below zero, relative to |phi(q)|^2; h is the output."""
    u = (e.phi_k.T @ (e.g_k[:, None] * e.v)).double()
    phi_q = e.phi_q.double()
    projected = (phi_q @ u @ torch.linalg.pinv(u.T @ u, hermitian=True) * (phi_q @ u)).sum(dim=-1)
    total = phi_q.square().sum(dim=-1)
    return float(((projected - total) / total).clamp_min(0).max())


def _published_loss_below_zero(e: Example) -> float:
    """Return how far |phi(q)|^2 - |h|^2 falls below zero, relative to |phi(q)|^2."""
    h = e.phi_q @ (e.phi_k.T @ (e.g_k[:, None] * e.v))
    total = e.phi_q.square().sum(dim=-1)
    return float(((h.square().sum(dim=-1) - total) / total).clamp_min(0).max())


def _gamma_of_constant_vectors(e: Example) -> float:
    """Return how far the recovered vectors are from constant, or gamma from zero, whichever is more.

    1_N is idempotent, so the inverse of I - (1 - eps) 1_N is I + (1 - eps) / eps 1_N.
    """
    w = e.g_k[:, None] * e.v
    a = w + (1 - VANISHING) / VANISHING * _averaging(e) @ w
    return max(largest_relative_error(a, a.mean(dim=0).expand_as(a)), _largest_gamma(e, a))


def _largest_gamma(e: Example, a: Tensor) -> float:
    """Return the largest |gamma| = |K~ a / (N a)|, relative to the first eigenvalue of K~ / N."""
    gram = centred_gram(e)
    return float(((gram @ a) / a).abs().max() / torch.linalg.matrix_norm(gram, ord=2))


def _gamma_by_least_squares(e: Example) -> float:
    w = e.g_k[:, None] * e.v
    return _largest_gamma(e, w - w.mean(dim=0))


REMARKS = (
    kernel_pca_theorem(
        "K10", "the centred Gram matrix is K - 1_N K - K 1_N + 1_N K 1_N", lambda e: _centring(e, last_term=True),
        "the last term left out", lambda e: _centring(e, last_term=False), "remark 1",
    ),
    kernel_pca_theorem(
        "K11", "the eigenvalues of the centred Gram matrix are N times those of the covariance",
        lambda e: _eigenvalues(e, factor=KEYS),
        "N left out", lambda e: _eigenvalues(e, factor=1), "proof of theorem 1",
    ),
    kernel_pca_theorem(
        "K12", "the eigenvectors of the centred Gram matrix sum to zero, so V = G A",
        lambda e: _column_sums(e.g_k[:, None] * e.theorem_values()),
        "Gram matrix not centred", lambda e: _column_sums(_uncentred_eigenvectors(e)), "remark 1",
    ),
    kernel_pca_theorem(
        "K13", "the trace of the centred Gram matrix is at most sum_j exp(-s |k_j|^2), so no eigenvalue exceeds N",
        lambda e: _trace_excess(e, centred_gram(e)),
        "kernel not divided by g", lambda e: _trace_excess(e, (e.scale * e.k @ e.k.T).exp()),
        "remark 1 (bound derived here)",
    ),
    kernel_pca_theorem(
        "K14", "N distinct keys have at most N - 1 principal axes",
        lambda e: _eigenvalue_with_repeated_keys(e, KEYS // 2 - 1),
        "an axis within the rank", lambda e: _eigenvalue_with_repeated_keys(e, AXES),
        "remark 2 (sharp bound derived here)",
    ),
    kernel_pca_theorem(
        "K15", "V = (I - S) G A with S = G 1_N G^-1, for any A", lambda e: _value_scaling(e, _scaling(e)),
        "S without g", lambda e: _value_scaling(e, _averaging(e)), "remark 3",
    ),
    kernel_pca_theorem(
        "K16", "S is idempotent", lambda e: _idempotence(_scaling(e)),
        "the attention matrix in place of S", lambda e: _idempotence((e.scale * e.k @ e.k.T).softmax(dim=-1)),
        "remark 3",
    ),
    kernel_pca_theorem(
        "K17", "S G A = 0 for eigenvectors A, so I - S leaves the theorem's values unchanged",
        lambda e: _scaled_values(e, e.theorem_values()),
        "random values", lambda e: _scaled_values(e, e.v), "remark 3",
    ),
    kernel_pca_theorem(
        "K18", "for the theorem's values the published projection loss equals the true projection loss",
        lambda e: _loss_difference(e, e.theorem_values()),
        "random values", lambda e: _loss_difference(e, e.v), "section 2.3",
    ),
    kernel_pca_theorem(
        "K19", "the true projection loss is never negative, whatever the values", _true_loss_below_zero,
        "the published loss", _published_loss_below_zero, "section 2.3 (residual derived here)",
    ),
)  # fmt: skip

ROW_SUMS = (
    kernel_pca_theorem(
        "K25", "row j of S sums to mean(g) / g(k_j)", lambda e: _row_sums(e, _scaling(e)),
        "S without g, whose rows sum to one", lambda e: _row_sums(e, _averaging(e)), "remark 3",
    ),
)  # fmt: skip

SINGULAR_INVERSE = (
    kernel_pca_theorem(
        "K26", "with the inverse of I - (1 - eps) 1_N, eps -> 0, random values too give constant vectors and gamma = 0",
        _gamma_of_constant_vectors,
        "least squares in place of the inverse", _gamma_by_least_squares, "section 2.2.2 (limit derived here)",
    ),
)  # fmt: skip
