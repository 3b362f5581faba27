r"""Statements on the variational form of R^c, which token statistics attention descends on.

With f(x) = log(1 + (d / eps^2) x) and any orthogonal Q, the sum of f over the eigenvalues of M is at most that over the
diagonal of Q^T M Q. ToST takes fixed U_k for the Q, and a membership Pi of tokens in subspaces:

.. math:: R_{var} = \tfrac12 \sum_k \tfrac{n_k}{n} \sum_i f\Big(\tfrac{1}{n_k} (U_k^T Z^T \Pi_k Z U_k)_{ii}\Big),
    \qquad n_k = \operatorname{tr} \Pi_k
"""

import torch
from torch import Tensor

from clearhead.theories.coding_rate.statement import TOST, apart
from clearhead.theories.statement import Statement, drawn

__all__ = ["VARIATIONAL"]

N, D, K, P, EPS, STEP = 23, 7, 3, 2, 0.5, 2.0
SLOPE = D / EPS**2


def _f(x: Tensor) -> Tensor:
    return torch.log1p(SLOPE * x)


def _gap(dtype: torch.dtype, *, turned: bool) -> float:
    """By how much the bound misses in the eigenvectors' basis, and how far it is below in others; or its least gap."""
    z = drawn(N, D, seed=0, dtype=dtype)
    moment = z.mT @ z / N
    values, vectors = torch.linalg.eigh(moment)
    exact = _f(values.clamp_min(0)).sum()
    gaps = []
    for seed in range(50):
        q = torch.linalg.qr(drawn(D, D, seed=seed + 1, dtype=dtype))[0]
        gaps.append(float(_f((q.mT @ moment @ q).diagonal()).sum() - exact))
    if turned:
        return min(gaps) / float(exact)
    at_vectors = _f((vectors.mT @ moment @ vectors).diagonal()).sum() - exact
    return max(float(at_vectors.abs()), -min(gaps)) / float(exact)


def _setting(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    bases = torch.linalg.qr(drawn(K, D, P, seed=2, dtype=torch.float64))[0].to(dtype)
    return drawn(N, D, seed=1, dtype=dtype), bases


def _membership(z: Tensor, bases: Tensor) -> Tensor:
    """softmax over k of |U_k^T z|^2 / 2, (k, n)."""
    return ((z @ bases).square().sum(dim=-1) / 2).softmax(dim=0)


def _variational_rate(z: Tensor, bases: Tensor, membership: Tensor) -> Tensor:
    sizes = membership.sum(dim=-1, keepdim=True)
    energies = ((z @ bases).square() * membership.unsqueeze(-1)).sum(dim=-2) / sizes
    return (sizes / len(z) * _f(energies)).sum() / 2


def _statistics_step(z: Tensor, bases: Tensor, *, weighted: bool = True) -> Tensor:
    """Token statistics attention: z less tau / n times the sum of Pi_k U_k D_k U_k^T z, D_k = f' of the energies."""
    v, membership = z @ bases, _membership(z, bases)
    energies = (v.square() * membership.unsqueeze(-1)).sum(dim=-2) / membership.sum(dim=-1, keepdim=True)
    slopes = SLOPE / (1 + SLOPE * energies) if weighted else torch.full_like(energies, SLOPE)
    moved: Tensor = (membership.unsqueeze(-1) * v * slopes.unsqueeze(-2)) @ bases.mT
    return z - STEP / len(z) * moved.sum(dim=0)


def _is_descent(dtype: torch.dtype, *, weighted: bool = True) -> float:
    """The step against that of torch's gradient, with the membership held fixed; and whether the rate falls."""
    z, bases = _setting(dtype)
    membership = _membership(z, bases)
    leaf = z.clone().requires_grad_()
    before = _variational_rate(leaf, bases, membership)
    (gradient,) = torch.autograd.grad(before, leaf)
    moved = _statistics_step(z, bases, weighted=weighted)
    rises = float(_variational_rate(moved, bases, membership) - before.detach())
    return max(apart(moved - z, -STEP * gradient), rises)


VARIATIONAL = (
    Statement(
        "R16",
        "the sum of log(1 + c m), m the diagonal of Q^T M Q, is at least that of eigenvalues, equal in their basis",
        lambda dtype: _gap(dtype, turned=False),
        "the nearest of 50 random Q",
        lambda dtype: _gap(dtype, turned=True),
        TOST,
    ),
    Statement(
        "R17",
        "token statistics attention is a gradient step on the variational rate with memberships fixed, and lowers it",
        _is_descent,
        "without the weights D_k",
        lambda dtype: _is_descent(dtype, weighted=False),
        TOST,
    ),
)
