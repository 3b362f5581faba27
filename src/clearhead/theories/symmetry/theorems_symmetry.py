"""Permutations and attention: theorem 1 and its proof (rows E and T1 to T5)."""

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clearhead.shapes import ShapeError
from clearhead.theories.statement import Statement, drawn
from clearhead.theories.symmetry.forms import (
    Weights,
    attention,
    drawn_weights,
    learned_query,
    self_attention,
)
from clearhead.theories.symmetry.groups import drawn_permutations, permutations
from clearhead.theories.symmetry.measure import Action, SymmetryReport, equivariance, invariance
from clearhead.theories.symmetry.statement import SLIDES, apart, shape_error

__all__ = ["SYMMETRY"]

WIDTH, HEAD, OUT = 13, 5, 3
FEW, MANY, ASKED = 5, 11, 7
"""Tokens of which all 120 permutations are taken, tokens of which some are drawn, and learned queries."""


def _tokens(n: int, dtype: torch.dtype) -> Tensor:
    return drawn(n, WIDTH, seed=20 + n, dtype=dtype)


def _weights(dtype: torch.dtype, *, key: int = HEAD, value: int = OUT, seed: int = 21) -> Weights:
    return drawn_weights((WIDTH,) * 3, key=key, value=value, seed=seed, dtype=dtype)


def _reports(dtype: torch.dtype) -> list[SymmetryReport]:
    """A_S under all permutations of few tokens, and under drawn permutations of more."""
    w = _weights(dtype)
    return [equivariance(partial(self_attention, weights=w), _tokens(n, dtype), permutations(n)) for n in (FEW, MANY)]


def _pooled(dtype: torch.dtype) -> list[SymmetryReport]:
    """A_Q likewise."""
    pool = partial(learned_query, queries=drawn(ASKED, HEAD, seed=23, dtype=dtype), weights=_weights(dtype))
    return [invariance(pool, _tokens(n, dtype), permutations(n)) for n in (FEW, MANY)]


def _matrices(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Each permutation of few tokens as it acts, and its P = [e_pi(1) ... e_pi(n)], with (XP)_j = x_pi(j)."""
    x, identity = _tokens(FEW, dtype), torch.eye(FEW, dtype=dtype)
    return [(element(x), identity[:, list(element.order)]) for element in permutations(FEW)]


def _e1(dtype: torch.dtype, *, inverse: bool) -> float:
    columns = _tokens(FEW, dtype).T
    return max(apart((columns @ (P.T if inverse else P)).T, moved) for moved, P in _matrices(dtype))


def _e2(dtype: torch.dtype, *, forgotten: bool) -> float:
    """softmax(P^T M R) = P^T softmax(M) R over the keys, R of another size than P; R may be forgotten."""
    M = drawn(FEW, MANY, seed=22, dtype=dtype)
    weights = torch.softmax(M, dim=-1)
    errors = []
    for rows, columns in zip(permutations(FEW)[1:], drawn_permutations(MANY, draws=119), strict=True):
        P, R = torch.eye(FEW, dtype=dtype)[:, list(rows.order)], torch.eye(MANY, dtype=dtype)[:, list(columns.order)]
        moved = P.T @ weights if forgotten else P.T @ weights @ R
        errors.append(apart(torch.softmax(P.T @ M @ R, dim=-1), moved))
    return min(errors) if forgotten else max(errors)


def _general_law(dtype: torch.dtype, *, paired: bool) -> float:
    q, k, v = (drawn(n, WIDTH, seed=24 + i, dtype=dtype) for i, n in enumerate((ASKED, MANY, MANY)))
    w = _weights(dtype)
    of_queries, of_keys, others = (
        drawn_permutations(n, draws=29, seed=seed) for seed, n in enumerate((ASKED, MANY, MANY))
    )
    group = [
        Action(name=f"{p.name} and {r.name}", operands=(p, r, r if paired else s), output=p)
        for p, r, s in zip(of_queries, of_keys, others, strict=True)
    ]
    return equivariance(partial(attention, weights=w), (q, k, v), group).largest


def _misprinted(x: Tensor, weights: Weights) -> Tensor:
    """The operator in the proof: W_v X softmax((W_k X)^T W_v X)."""
    return self_attention(x, replace(weights, w_q=weights.w_v))


def _t3(dtype: torch.dtype) -> float:
    """Its equivariance error; infinite if it could be computed at all for unequal widths."""
    x = _tokens(FEW, dtype)
    try:
        _misprinted(x, _weights(dtype))
    except ShapeError:
        return equivariance(partial(_misprinted, weights=_weights(dtype, value=HEAD)), x, permutations(FEW)).largest
    return math.inf


def _t3_control(dtype: torch.dtype) -> float:
    x, equal = _tokens(MANY, dtype), _weights(dtype, value=HEAD)
    return apart(_misprinted(x, equal), self_attention(x, equal))


def _t4(dtype: torch.dtype, *, square: bool) -> float:
    """P^T P and P P^T against the identity; for the first columns of P alone, only the former is one."""
    identity, kept = torch.eye(FEW, dtype=dtype), FEW if square else FEW - 2
    products = [(P[:, :kept].T @ P[:, :kept], P[:, :kept] @ P[:, :kept].T) for _, P in _matrices(dtype)]
    inner = max(apart(small, identity[:kept, :kept]) for small, _ in products)
    outer = [apart(large, identity) for _, large in products]
    return max(inner, *outer) if square else min(outer) - inner


def _t5(dtype: torch.dtype, *, invariant: bool) -> float:
    """A_Q with as many queries as tokens, so that both properties can be asked of it."""
    x, queries, w = _tokens(FEW, dtype), drawn(FEW, HEAD, seed=27, dtype=dtype), _weights(dtype)
    pool = partial(learned_query, queries=queries, weights=w)
    if not invariant:
        return equivariance(pool, x, permutations(FEW)).largest
    fewer = learned_query(x, queries[:2], w)
    return invariance(pool, x, permutations(FEW)).largest + shape_error(fewer, (2, OUT))


SYMMETRY = (
    Statement("E1", "P = [e_pi(1) ... e_pi(n)] takes x_pi(j) to place j, for all n! permutations",
              partial(_e1, inverse=False),
              "P transposed", partial(_e1, inverse=True), f"{SLIDES}, permutation matrices"),
    Statement("E2", "softmax commutes with permutations of rows and columns", partial(_e2, forgotten=False),
              "columns of the result not moved", partial(_e2, forgotten=True), f"{SLIDES}, proof of theorem 1"),
    Statement("T1a", "self-attention is equivariant: permuting tokens permutes outputs",
              lambda dtype: max(report.largest for report in _reports(dtype)),
              "outputs in another order", lambda dtype: min(report.control for report in _reports(dtype)),
              f"{SLIDES}, theorem 1"),
    Statement("T1b", "attention with a learned query is invariant to permutations of its tokens",
              lambda dtype: max(report.largest for report in _pooled(dtype)),
              "other tokens", lambda dtype: min(report.control for report in _pooled(dtype)),
              f"{SLIDES}, theorem 1"),
    Statement("T2", "queries carry their permutation to the output; keys and values may take another, together",
              partial(_general_law, paired=True),
              "values parted from their keys", partial(_general_law, paired=False),
              f"{SLIDES}, theorem 1 (generalised here)"),
    Statement("T3", "the proof's operator, W_v printed for W_q, needs equal widths and is equivariant as well", _t3,
              "taken for equation (3)", _t3_control, f"{SLIDES}, proof of theorem 1 and equation (3)"),
    Statement("T4", "P P^T = I, which the proof uses, and P^T P = I, which it cites, hold for square P",
              partial(_t4, square=True),
              "P P^T with two columns left out", partial(_t4, square=False), f"{SLIDES}, proof of theorem 1"),
    Statement("T5", "of attention with a learned query, whose outputs are no tokens, only invariance can be asked",
              partial(_t5, invariant=True),
              "equivariance asked of it", partial(_t5, invariant=False), f"{SLIDES}, definition 2 and equation (4)"),
)  # fmt: skip
