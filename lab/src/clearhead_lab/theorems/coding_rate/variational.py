r"""Theorems on the variational form of R^c, on which token statistics attention (ToST) descends (Wu et al. 2024).

With f(x) = log(1 + (d / eps^2) x) and any orthogonal Q, the sum of f over the eigenvalues of M is at most that over the
diagonal of Q^T M Q. ToST takes fixed U_k for the Q, and a membership Pi of tokens in subspaces:

.. math:: R_{var} = \tfrac12 \sum_k \tfrac{n_k}{n} \sum_i f\Big(\tfrac{1}{n_k} (U_k^T Z^T \Pi_k Z U_k)_{ii}\Big),
    \qquad n_k = \operatorname{tr} \Pi_k
"""

import torch
from torch import Tensor

from clearhead_lab.theorems.coding_rate.rate import TOST
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

N, D, K, P, EPS, STEP = 23, 7, 3, 2, 0.5, 2.0
SLOPE = D / EPS**2
"""f'(0)."""


def _f(x: Tensor) -> Tensor:
    return torch.log1p(SLOPE * x)


def _bound_gaps(dtype: torch.dtype) -> tuple[float, list[float]]:
    """Return the relative gap of the bound with the eigenvectors for Q, and with 50 random orthogonal Q."""
    z = normal_tensor(N, D, seed=0, dtype=dtype)
    moment = z.mT @ z / N
    values, vectors = torch.linalg.eigh(moment)
    exact = _f(values.clamp_min(0)).sum()

    def gap(q: Tensor) -> float:
        return float((_f((q.mT @ moment @ q).diagonal()).sum() - exact) / exact)

    random = [torch.linalg.qr(normal_tensor(D, D, seed=seed + 1, dtype=dtype))[0] for seed in range(50)]
    return gap(vectors), [gap(q) for q in random]


def _bound_error(dtype: torch.dtype) -> float:
    """Return the larger of the gap at the eigenvectors and of how far the others fall below zero."""
    at_eigenvectors, at_random = _bound_gaps(dtype)
    return max(abs(at_eigenvectors), -min(at_random))


def _membership(z: Tensor, bases: Tensor) -> Tensor:
    """Return Pi = softmax over k of |U_k^T z|^2 / 2, (k, n)."""
    return ((z @ bases).square().sum(dim=-1) / 2).softmax(dim=0)


def _energies(z: Tensor, bases: Tensor, membership: Tensor) -> Tensor:
    """Return the diagonals of U_k^T Z^T Pi_k Z U_k / n_k, (k, p)."""
    weighted = ((z @ bases).square() * membership.unsqueeze(-1)).sum(dim=-2)
    return weighted / membership.sum(dim=-1, keepdim=True)


def _variational_rate(z: Tensor, bases: Tensor, membership: Tensor) -> Tensor:
    sizes = membership.sum(dim=-1, keepdim=True)
    return (sizes / len(z) * _f(_energies(z, bases, membership))).sum() / 2


def _statistics_step(z: Tensor, bases: Tensor, *, weighted: bool) -> Tensor:
    """Return z - (tau / n) sum_k Pi_k U_k D_k U_k^T z, D_k = f'(energies); f'(0) in place of D_k if not weighted."""
    membership = _membership(z, bases)
    energies = _energies(z, bases, membership)
    slopes = SLOPE / (1 + SLOPE * energies) if weighted else torch.full_like(energies, SLOPE)
    gradient: Tensor = (membership.unsqueeze(-1) * (z @ bases) * slopes.unsqueeze(-2)) @ bases.mT
    return z - STEP / len(z) * gradient.sum(dim=0)


def _descent_error(dtype: torch.dtype, *, weighted: bool) -> float:
    """Return the larger of the step's relative error against autograd, Pi held fixed, and of the rise of the rate."""
    bases = torch.linalg.qr(normal_tensor(K, D, P, seed=2, dtype=torch.float64))[0].to(dtype)
    z = normal_tensor(N, D, seed=1, dtype=dtype)
    membership = _membership(z, bases)
    leaf = z.clone().requires_grad_()
    before = _variational_rate(leaf, bases, membership)
    (gradient,) = torch.autograd.grad(before, leaf)
    after = _statistics_step(z, bases, weighted=weighted)
    rise = float(_variational_rate(after, bases, membership) - before.detach())
    return max(relative_residual(after - z, -STEP * gradient), rise)


VARIATIONAL_THEOREMS = (
    Theorem(
        "R16",
        "sum_i log(1 + c (Q^T M Q)_ii) >= sum_i log(1 + c lambda_i(M)), with equality if Q diagonalises M",
        _bound_error,
        "the smallest gap of 50 random Q",
        lambda dtype: min(_bound_gaps(dtype)[1]),
        TOST,
    ),
    Theorem(
        "R17",
        "token statistics attention is a gradient step on the variational rate with fixed memberships, and lowers it",
        lambda dtype: _descent_error(dtype, weighted=True),
        "without the weights D_k",
        lambda dtype: _descent_error(dtype, weighted=False),
        TOST,
    ),
)
