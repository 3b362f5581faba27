"""Remarks 1 to 3, the bounds on the spectrum, and the projection loss."""

import torch
from torch import Tensor

from clearhead.operators.kernel_pca import kernel_pca
from clearhead.theories.kernel_pca.loss import explained_fraction, log_output_square, log_true_loss, seen_queries
from clearhead.theories.kernel_pca.space import key_space
from clearhead.theories.kernel_pca.spans import span_of
from clearhead.theories.kernel_pca.statement import AXES, KEYS, Drawn, Statement, apart, centred_gram

__all__ = ["REMARKS", "SCALING"]


def _gram(d: Drawn) -> Tensor:
    kernel = (d.scale * d.k @ d.k.T).exp()
    return kernel / d.g_k[:, None] / d.g_k


def _averaging(d: Drawn) -> Tensor:
    """1_N, whose entries are all 1/N."""
    return torch.full((KEYS, KEYS), 1 / KEYS, dtype=d.k.dtype)


def _remark_1(d: Drawn) -> float:
    gram, one = _gram(d), _averaging(d)
    return apart(gram - one @ gram - gram @ one + one @ gram @ one, centred_gram(d))


def _remark_1_half(d: Drawn) -> float:
    gram, one = _gram(d), _averaging(d)
    return apart(gram - one @ gram - gram @ one, centred_gram(d))


def _covariance_energies(d: Drawn) -> Tensor:
    energies: Tensor = torch.linalg.eigvalsh((d.centred_phi.T @ d.centred_phi / KEYS).double()).flip(-1)[:AXES]
    return energies


def _gram_energies(d: Drawn) -> Tensor:
    found = d.found()
    return found.energy * found.log_scale.exp()


def _eigenvalue_convention(d: Drawn) -> float:
    return apart(_gram_energies(d), KEYS * _covariance_energies(d))


def _eigenvalue_without_n(d: Drawn) -> float:
    return apart(_gram_energies(d), _covariance_energies(d))


def _zero_mean(d: Drawn) -> float:
    a = d.g_k[:, None] * d.theorem_values()
    return float(a.sum(dim=0).abs().max() / a.abs().sum(dim=0).max())


def _uncentred_mean(d: Drawn) -> float:
    _, vectors = torch.linalg.eigh(d.phi_k @ d.phi_k.T)
    a = vectors.flip(-1)[:, :AXES]
    return float(a.sum(dim=0).abs().max() / a.abs().sum(dim=0).max())


def _trace_excess(gram: Tensor, d: Drawn) -> float:
    bound = (-d.scale * d.k.square().sum(dim=-1)).exp().sum()
    return float(((gram.trace() - bound) / bound).clamp_min(0))


def _trace_bound(d: Drawn) -> float:
    return _trace_excess(centred_gram(d), d)


def _trace_unnormalised(d: Drawn) -> float:
    return _trace_excess((d.scale * d.k @ d.k.T).exp(), d)


def _energy_beyond(d: Drawn, axes: int) -> float:
    """The energy of the axis after so many, beside the first, where half of the keys repeat others."""
    distinct = KEYS // 2
    found = kernel_pca(torch.cat([d.k[:distinct]] * 2), axes=axes + 1, scale=d.scale)
    return float(found.energy[axes] / found.energy[0])


def _rank_bound(d: Drawn) -> float:
    return _energy_beyond(d, KEYS // 2 - 1)


def _rank_reached(d: Drawn) -> float:
    return _energy_beyond(d, AXES)


def _scaling(d: Drawn) -> Tensor:
    """S = G 1_N G^-1, G = diag(1 / g)."""
    return _averaging(d) * d.g_k / d.g_k[:, None]


def _unscaled_a(d: Drawn) -> Tensor:
    """A vector for each axis that is no eigenvector, so that its mean is not zero."""
    return d.v + 1


def _remark_3(d: Drawn) -> float:
    """V = G A - G 1_N A = (I - S) G A, for any A."""
    a = _unscaled_a(d)
    v_hat = a / d.g_k[:, None]
    return apart(v_hat - _scaling(d) @ v_hat, (a - a.mean(dim=0)) / d.g_k[:, None])


def _remark_3_unweighted(d: Drawn) -> float:
    a = _unscaled_a(d)
    v_hat = a / d.g_k[:, None]
    return apart(v_hat - _averaging(d) @ v_hat, (a - a.mean(dim=0)) / d.g_k[:, None])


def _idempotent(d: Drawn) -> float:
    s = _scaling(d)
    return apart(s @ s, s)


def _attention_idempotent(d: Drawn) -> float:
    s = (d.scale * d.k @ d.k.T).softmax(dim=-1)
    return apart(s @ s, s)


def _row_sums(s: Tensor, d: Drawn) -> float:
    return apart(s.sum(dim=-1), d.g_k.mean() / d.g_k)


def _vanishing(d: Drawn, v_hat: Tensor) -> float:
    return float((_scaling(d) @ v_hat).abs().max() / v_hat.abs().max())


def _loss_gap(d: Drawn, v: Tensor) -> float:
    """|J_paper - J_true| over mean |phi(q)|^2, for the attention of the drawn queries over values V."""
    space = key_space(d.k, scale=d.scale)
    queries = seen_queries(space, d.q.unsqueeze(-3))
    total = queries.log_mean_square.exp()
    true = log_true_loss(queries, explained_fraction(queries, span_of(space, v))).exp()
    return float(((total - log_output_square(queries, v).exp() - true) / total).abs().max())


def _true_loss_below_zero(d: Drawn) -> float:
    """By its definition, h'(V'KV)^+ h: how far below zero the residual of a query falls."""
    u = (d.phi_k.T @ (d.g_k[:, None] * d.v)).double()
    phi_q = d.phi_q.double()
    inside = (phi_q @ u @ torch.linalg.pinv(u.T @ u, hermitian=True) * (phi_q @ u)).sum(dim=-1)
    total = phi_q.square().sum(dim=-1)
    return float(((inside - total) / total).clamp_min(0).max())


def _paper_loss_below_zero(d: Drawn) -> float:
    h = d.phi_q @ (d.phi_k.T @ (d.g_k[:, None] * d.v))
    total = d.phi_q.square().sum(dim=-1)
    return float(((h.square().sum(dim=-1) - total) / total).clamp_min(0).max())


REMARKS = (
    Statement("K10", "the centred Gram matrix is K - 1K - K1 + 1K1", _remark_1,
              "the last term left out", _remark_1_half, "remark 1"),
    Statement("K11", "its eigenvalues are N times those of the covariance", _eigenvalue_convention,
              "N left out", _eigenvalue_without_n, "proof of theorem 1"),
    Statement("K12", "its eigenvectors sum to zero, so that V is A / g", _zero_mean,
              "Gram matrix left uncentred", _uncentred_mean, "remark 1"),
    Statement("K13", "its trace is at most the sum of exp(-s |k|^2), so no eigenvalue exceeds N", _trace_bound,
              "kernel not divided by g", _trace_unnormalised, "remark 1 (bound derived here)"),
    Statement("K14", "there are fewer axes than distinct keys", _rank_bound,
              "an axis within the rank", _rank_reached, "remark 2 (sharp bound derived here)"),
    Statement("K15", "V = (I - S) G A with S = G 1_N / G", _remark_3,
              "S without g", _remark_3_unweighted, "remark 3"),
    Statement("K16", "S is idempotent", _idempotent,
              "the attention matrix in place of S", _attention_idempotent, "remark 3"),
    Statement("K17", "S G A = 0 for eigenvectors, so that I - S changes nothing there",
              lambda d: _vanishing(d, d.theorem_values()),
              "random values", lambda d: _vanishing(d, d.v), "remark 3"),
    Statement("K18", "for the theorem's values the published projection loss is the true one",
              lambda d: _loss_gap(d, d.theorem_values()),
              "random values", lambda d: _loss_gap(d, d.v), "section 2.3"),
    Statement("K19", "for any values the true projection loss is not negative", _true_loss_below_zero,
              "the published loss", _paper_loss_below_zero, "section 2.3 (residual derived here)"),
)  # fmt: skip

SCALING = (
    Statement("K25", "row j of S sums to mean(g) / g_j", lambda d: _row_sums(_scaling(d), d),
              "S without g, whose rows sum to one", lambda d: _row_sums(_averaging(d), d), "remark 3"),
)  # fmt: skip
