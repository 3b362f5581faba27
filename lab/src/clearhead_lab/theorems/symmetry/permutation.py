"""Theorem 1 of Ji and Xie, attention under permutations of its tokens, and the steps of its proof (E, T1 to T5)."""

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clearhead.shapes import ShapeError
from clearhead.theories.symmetry.groups import permutations, random_permutations
from clearhead.theories.symmetry.measure import Action, SymmetryReport, equivariance, invariance
from clearhead_lab.theorems.symmetry.forms import (
    SLIDES,
    Weights,
    attention,
    learned_query_attention,
    random_weights,
    self_attention,
    shape_error,
)
from clearhead_lab.theorems.theorem import Theorem, normal_tensor, relative_residual

WIDTH, HEAD, OUT = 13, 5, 3
FEW, MANY, QUERIES = 5, 11, 7
"""Few enough tokens for all 120 permutations, too many for all, and the number of learned queries."""


def _tokens(n: int, dtype: torch.dtype) -> Tensor:
    return normal_tensor(n, WIDTH, seed=20 + n, dtype=dtype)


def _weights(dtype: torch.dtype, *, value_width: int = OUT) -> Weights:
    return random_weights((WIDTH,) * 3, key_width=HEAD, value_width=value_width, seed=21, dtype=dtype)


def _self_attention_reports(dtype: torch.dtype) -> list[SymmetryReport]:
    """Measure the equivariance of A_S to all permutations of few tokens and to random ones of many."""
    operator = partial(self_attention, weights=_weights(dtype))
    return [equivariance(operator, _tokens(n, dtype), permutations(n)) for n in (FEW, MANY)]


def _learned_query_reports(dtype: torch.dtype) -> list[SymmetryReport]:
    """Measure the invariance of A_Q to the same permutations."""
    queries = normal_tensor(QUERIES, HEAD, seed=23, dtype=dtype)
    operator = partial(learned_query_attention, queries=queries, weights=_weights(dtype))
    return [invariance(operator, _tokens(n, dtype), permutations(n)) for n in (FEW, MANY)]


def _permutation_matrices(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return the permuted tokens and P = [e_pi(1) ... e_pi(n)] for every permutation of few tokens."""
    x, identity = _tokens(FEW, dtype), torch.eye(FEW, dtype=dtype)
    return [(element(x), identity[:, list(element.order)]) for element in permutations(FEW)]


def _permutation_by_matrix(dtype: torch.dtype, *, transposed: bool) -> float:
    """Compare XP, tokens as columns, with the permuted tokens."""
    columns = _tokens(FEW, dtype).T
    return max(
        relative_residual((columns @ (P.T if transposed else P)).T, permuted)
        for permuted, P in _permutation_matrices(dtype)
    )


def _softmax_permuted(dtype: torch.dtype, *, columns_moved: bool) -> float:
    """Compare softmax(P^T M R) with P^T softmax(M) R, or with P^T softmax(M)."""
    M = normal_tensor(FEW, MANY, seed=22, dtype=dtype)
    weights = torch.softmax(M, dim=-1)
    errors = []
    for rows, columns in zip(permutations(FEW)[1:], random_permutations(MANY, draws=119), strict=True):
        P, R = torch.eye(FEW, dtype=dtype)[:, list(rows.order)], torch.eye(MANY, dtype=dtype)[:, list(columns.order)]
        expected = P.T @ weights @ R if columns_moved else P.T @ weights
        errors.append(relative_residual(torch.softmax(P.T @ M @ R, dim=-1), expected))
    return max(errors) if columns_moved else min(errors)


def _general_law(dtype: torch.dtype, *, paired: bool) -> float:
    """Measure A(QP, KR, VR) = A(Q, K, V) P; not `paired`: the values get a permutation other than R."""
    q, k, v = (normal_tensor(n, WIDTH, seed=24 + i, dtype=dtype) for i, n in enumerate((QUERIES, MANY, MANY)))
    of_queries, of_keys, of_values = (
        random_permutations(n, draws=29, seed=seed) for seed, n in enumerate((QUERIES, MANY, MANY))
    )
    group = [
        Action(name=f"{p.name} and {r.name}", operands=(p, r, r if paired else s), output=p)
        for p, r, s in zip(of_queries, of_keys, of_values, strict=True)
    ]
    return equivariance(partial(attention, weights=_weights(dtype)), (q, k, v), group).largest


def _misprinted(x: Tensor, weights: Weights) -> Tensor:
    """Return the operator printed in the proof, W_v X softmax((W_k X)^T W_v X)."""
    return self_attention(x, replace(weights, w_q=weights.w_v))


def _misprinted_equivariance(dtype: torch.dtype) -> float:
    """Return its equivariance error; infinite if unequal widths raise no ShapeError."""
    x = _tokens(FEW, dtype)
    try:
        _misprinted(x, _weights(dtype))
    except ShapeError:
        operator = partial(_misprinted, weights=_weights(dtype, value_width=HEAD))
        return equivariance(operator, x, permutations(FEW)).largest
    return math.inf


def _misprinted_difference(dtype: torch.dtype) -> float:
    x, weights = _tokens(MANY, dtype), _weights(dtype, value_width=HEAD)
    return relative_residual(_misprinted(x, weights), self_attention(x, weights))


def _orthogonality(dtype: torch.dtype, *, square: bool) -> float:
    """Compare P^T P and P P^T with the identity; of a P without its last two columns only P^T P is the identity."""
    identity, columns = torch.eye(FEW, dtype=dtype), FEW if square else FEW - 2
    matrices = [P[:, :columns] for _, P in _permutation_matrices(dtype)]
    inner = max(relative_residual(P.T @ P, identity[:columns, :columns]) for P in matrices)
    outer = [relative_residual(P @ P.T, identity) for P in matrices]
    return max(inner, *outer) if square else min(outer) - inner


def _learned_query_symmetry(dtype: torch.dtype, *, invariant: bool) -> float:
    """Measure invariance or equivariance of A_Q with as many queries as tokens, so that both are defined."""
    x, queries, w = _tokens(FEW, dtype), normal_tensor(FEW, HEAD, seed=27, dtype=dtype), _weights(dtype)
    operator = partial(learned_query_attention, queries=queries, weights=w)
    if not invariant:
        return equivariance(operator, x, permutations(FEW)).largest
    two_queries = learned_query_attention(x, queries[:2], w)
    return invariance(operator, x, permutations(FEW)).largest + shape_error(two_queries, (2, OUT))


PERMUTATION_THEOREMS = (
    Theorem("E1", "XP, P = [e_pi(1) ... e_pi(n)], has x_pi(j) as its column j, for all n! permutations pi",
            partial(_permutation_by_matrix, transposed=False),
            "P transposed", partial(_permutation_by_matrix, transposed=True), f"{SLIDES}, permutation matrices"),
    Theorem("E2", "softmax commutes with permutations of rows and columns",
            partial(_softmax_permuted, columns_moved=True),
            "columns of the result not permuted", partial(_softmax_permuted, columns_moved=False),
            f"{SLIDES}, proof of theorem 1"),
    Theorem("T1a", "self-attention is equivariant: permuting the tokens permutes the outputs",
            lambda dtype: max(report.largest for report in _self_attention_reports(dtype)),
            "outputs in another order", lambda dtype: min(report.control for report in _self_attention_reports(dtype)),
            f"{SLIDES}, theorem 1"),
    Theorem("T1b", "attention with a learned query is invariant to permutations of its tokens",
            lambda dtype: max(report.largest for report in _learned_query_reports(dtype)),
            "other tokens", lambda dtype: min(report.control for report in _learned_query_reports(dtype)),
            f"{SLIDES}, theorem 1"),
    Theorem("T2", "permuting the queries permutes the outputs; permuting keys and values together changes nothing",
            partial(_general_law, paired=True),
            "keys and values permuted differently", partial(_general_law, paired=False),
            f"{SLIDES}, theorem 1 (generalised here)"),
    Theorem("T3", "the proof's operator, which has W_v for W_q, needs equal widths and is equivariant as well",
            _misprinted_equivariance,
            "compared with equation (3)", _misprinted_difference, f"{SLIDES}, proof of theorem 1 and equation (3)"),
    Theorem("T4", "P P^T = I, which the proof uses, and P^T P = I, which it cites, both hold for a square P",
            partial(_orthogonality, square=True),
            "P P^T for P without two of its columns", partial(_orthogonality, square=False),
            f"{SLIDES}, proof of theorem 1"),
    Theorem("T5", "attention with a learned query has outputs that are not tokens: it is invariant, not equivariant",
            partial(_learned_query_symmetry, invariant=True),
            "its equivariance", partial(_learned_query_symmetry, invariant=False),
            f"{SLIDES}, definition 2 and equation (4)"),
)  # fmt: skip
