r"""Theorems on the attention SVM: separability, rank, duality and the factors of W (Tarzanagh et al. 2023).

A problem has n sequences of T tokens of width d. W selects token alpha_i of sequence i if it gives it the highest
score x_it^T W z_i. The margin is the largest :math:`\min_j \langle A_j, W\rangle / \|W\|`, A_j the constraint matrices.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.svm.constraints import selection_constraints
from clearhead.theories.max_margin.svm.solution import MaxMargin, Norm, Status, bracket, dual_norm, norm_of
from clearhead.theories.max_margin.svm.solving import attention_svm
from clearhead_lab.theorems.theorem import Theorem

PAPER = "Tarzanagh et al. 2023 (arXiv 2308.16898)"
SOLVER_TOLERANCE = 1e-10
"""Tolerance for both dtypes: problems are solved in float64 whatever the dtype of their data."""
SEEDS = 20
N, T, D = 3, 5, 7
"""Sizes of problems that are separable: three sequences of five tokens in seven dimensions."""


class Problem(NamedTuple):
    """The arguments of `attention_svm`."""

    x: Tensor
    z: Tensor
    selected: Tensor


def random_problem(seed: int, dtype: torch.dtype, *, n: int = N, t: int = T, d: int = D) -> Problem:
    """Return normal tokens and queries, and for each sequence a token selected at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, t, d, generator=generator, dtype=torch.float64).to(dtype)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    return Problem(x, z, torch.randint(t, (n,), generator=generator))


def _solved_problems(dtype: torch.dtype, norm: Norm = Norm.FROBENIUS) -> Iterator[tuple[Problem, MaxMargin]]:
    for seed in range(5):
        problem = random_problem(seed, dtype)
        yield problem, attention_svm(*problem, norm=norm)


def _matrix(svm: MaxMargin) -> Array:
    assert svm.W is not None, "problems of these sizes are separable"
    return svm.W.numpy()


def _infeasible_share(dtype: torch.dtype, *, d: int) -> float:
    """Return the share of random problems with n = 4 and T = 6 that no matrix solves."""
    statuses = [attention_svm(*random_problem(seed, dtype, n=4, t=6, d=d)).status for seed in range(SEEDS)]
    return statuses.count(Status.INFEASIBLE) / len(statuses)


def _singular_value_after(W: Array, rank: int) -> float:
    """Return the first singular value beyond the rank, relative to the largest."""
    values = np.linalg.svd(W, compute_uv=False)
    return float(values[rank] / values[0])


def _rank_of_solution(dtype: torch.dtype) -> float:
    return max(_singular_value_after(_matrix(svm), N) for _, svm in _solved_problems(dtype))


def _rank_with_null_space(dtype: torch.dtype) -> float:
    """Return the same for solutions to which a matrix is added that changes no score."""
    values = []
    for problem, svm in _solved_problems(dtype):
        z = problem.z.double().numpy()
        null_space = np.eye(D) - np.linalg.pinv(z) @ z
        values.append(_singular_value_after(_matrix(svm) + null_space, N))
    return min(values)


def _bound_violation(dtype: torch.dtype, *, dual: Norm | None = None) -> float:
    """Return by how much bounds from random matrices and multipliers miss the margin, relative to it.

    `dual`: use the dual of this norm in the upper bound instead of the dual of the problem's own norm.
    """
    violation = 0.0
    for norm in (Norm.FROBENIUS, Norm.NUCLEAR):
        for seed, (problem, svm) in enumerate(_solved_problems(dtype, norm)):
            constraints, _ = selection_constraints(*problem)
            generator = np.random.default_rng(seed)
            for _ in range(4):
                W = _matrix(svm) + 0.1 * generator.standard_normal((D, D))
                multipliers = (
                    generator.exponential(size=constraints.count)
                    + constraints.count * svm.multipliers.numpy()[constraints.sequence, constraints.token]
                )
                bounds = bracket(constraints, W, multipliers, norm)
                high = bounds.high
                if dual is not None:
                    high = dual_norm(constraints.combined(multipliers), dual) / multipliers.sum()
                margin = svm.margin.low
                violation = max(violation, (bounds.low - margin) / margin, (margin - high) / margin)
    return violation


def _duality_gap(dtype: torch.dtype) -> float:
    return max(svm.gap for _, svm in _solved_problems(dtype))


def _duality_gap_of_permuted_multipliers(dtype: torch.dtype) -> float:
    gaps = []
    for problem, svm in _solved_problems(dtype):
        constraints, _ = selection_constraints(*problem)
        multipliers = np.roll(svm.multipliers.numpy()[constraints.sequence, constraints.token], 1)
        bounds = bracket(constraints, _matrix(svm), multipliers, Norm.FROBENIUS)
        gaps.append((bounds.high - bounds.low) / bounds.high)
    return min(gaps)


def _negative_margin(dtype: torch.dtype, *, by_matrix: bool) -> float:
    """Return by how much the least margin of random matrices is below zero, relative to the largest.

    `by_matrix`: on the tokens that the matrix selects; otherwise on random tokens.
    """
    violation = 0.0
    for seed in range(5):
        x, z, random_tokens = random_problem(seed, dtype)
        W = torch.randn(D, D, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64).to(dtype)
        scores = torch.einsum("ntd,de,ne->nt", x, W, z)
        constraints, _ = selection_constraints(x, z, scores.argmax(dim=-1) if by_matrix else random_tokens)
        margins = constraints.values(W.double().numpy())
        violation = max(violation, -float(margins.min()) / float(np.abs(margins).max()))
    return violation


def _random_factors(dtype: torch.dtype) -> Iterator[tuple[Array, Array]]:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        yield tuple(  # type: ignore[misc]
            torch.randn(7, 5, generator=generator, dtype=torch.float64).to(dtype).double().numpy() for _ in range(2)
        )


def _excess(K: Array, Q: Array) -> float:
    """Return (|K|^2 + |Q|^2) / (2 |K Q^T|_*) - 1, which is never negative."""
    return float((K**2).sum() + (Q**2).sum()) / (2 * norm_of(K @ Q.T, Norm.NUCLEAR)) - 1


def _excess_of_balanced_factors(dtype: torch.dtype) -> float:
    """Return the larger of the excess of balanced factors and of how far that of random factors is below zero."""
    violation = 0.0
    for K, Q in _random_factors(dtype):
        U, values, V = np.linalg.svd(K @ Q.T)
        root = np.sqrt(values)
        violation = max(violation, abs(_excess(U * root, V.T * root)), -_excess(K, Q))
    return violation


SVM_THEOREMS = (
    Theorem(
        "M1",
        "if d >= max(T - 1, n), then for almost every dataset any choice of tokens can be selected by some W (n = 4, "
        "T = 6, d = 5)",
        lambda dtype: _infeasible_share(dtype, d=5),
        "d = 2",
        lambda dtype: _infeasible_share(dtype, d=2),
        f"{PAPER}, separability",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M2",
        "the attention SVM of least Frobenius norm has rank at most n",
        _rank_of_solution,
        "another matrix with the same scores",
        _rank_with_null_space,
        f"{PAPER}, problem (Att-SVM)",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M3",
        "any matrix gives a lower bound on the margin; any multipliers give an upper bound through the dual norm",
        _bound_violation,
        "the spectral norm in place of the Frobenius norm's dual",
        lambda dtype: _bound_violation(dtype, dual=Norm.NUCLEAR),
        f"{PAPER}, problem (Att-SVM)",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M4",
        "at the solution both bounds are equal: the margin is 1 / |W|, and the multipliers prove it",
        _duality_gap,
        "the multipliers in another order",
        _duality_gap_of_permuted_multipliers,
        f"{PAPER}, problem (Att-SVM)",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M5",
        "every matrix separates the tokens that it selects itself",
        lambda dtype: _negative_margin(dtype, by_matrix=True),
        "random tokens",
        lambda dtype: _negative_margin(dtype, by_matrix=False),
        f"{PAPER}, problem (Att-SVM)",
        SOLVER_TOLERANCE,
    ),
    Theorem(
        "M6",
        "|K|^2 + |Q|^2 is at least twice the nuclear norm of K Q^T, with equality for balanced factors",
        _excess_of_balanced_factors,
        "random factors",
        lambda dtype: min(_excess(K, Q) for K, Q in _random_factors(dtype)),
        "cf. Srebro, Rennie and Jaakkola 2004",
        SOLVER_TOLERANCE,
    ),
)
