"""Held-out selection: the tokens that a rule fitted on some sequences selects in others."""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.on_heads.problems import Fit, Group, Problem
from clearhead.theories.max_margin.svm.constraints import Indices

RIDGE = 0.1
"""Regularisation, relative to the mean of the kernel's diagonal."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rule of highest score x^T W z, W = sum_t weight_t x_t z^T.

    z is the query of the token's sequence, or of the sequence that `order` gives it.
    """

    weights: Array
    order: Indices


@dataclass(frozen=True, slots=True)
class FixedPosition:
    """The rule that always selects one position, counted from the end if it is negative."""

    position: int


class Trial:
    """A group to fit rules on, and another group to test them on."""

    def __init__(self, training: Group, test: Group) -> None:
        self._training, self._test = training, test
        self._queries = test.z @ training.z.T
        self._positions = np.concatenate([choice.positions for choice in test.choices])
        self._lengths = np.array([choice.length for choice in test.choices])

    def accuracy(self, rule: Matrix | FixedPosition | None, kind: str, draw: int, h: int) -> float:
        """Return the share of test sequences in which the rule selects the head's token; NaN without a rule.

        The rule chooses among the sampled tokens and the one that the head selects.
        """
        if rule is None:
            return float("nan")
        group, scores = self._test, self._scores(rule)
        selected = group.selected(kind, draw, h)
        candidates = group.in_sample.copy()
        candidates[selected] = True
        scores = np.where(candidates, scores, -np.inf)
        best = np.maximum.reduceat(scores, group.start)
        # A rule that gives several tokens the highest score selects none.
        equal = np.add.reduceat(scores == best[group.sequence], group.start)
        return float(((scores[selected] == best) & (equal == 1)).mean())

    def _scores(self, rule: Matrix | FixedPosition) -> Array:
        group = self._test
        if isinstance(rule, FixedPosition):
            position = rule.position if rule.position >= 0 else self._lengths + rule.position
            positions = np.broadcast_to(position, len(self._lengths))[group.sequence]
            return np.asarray(self._positions == positions, dtype=np.float64)
        nonzero = np.flatnonzero(rule.weights)
        queries = self._queries[:, rule.order][:, self._training.sequence[nonzero]] * rule.weights[nonzero]
        pulls = queries @ self._training.x[nonzero]
        return np.asarray(np.einsum("jc,jc->j", group.x, pulls[group.sequence]))


def margin(fit: Fit) -> Matrix:
    """Return the rule of the attention SVM."""
    return _difference(fit.problem, fit.multipliers)


def hebbian(problem: Problem) -> Matrix:
    """Return the rule of the Hebbian matrix, the sum of all constraints."""
    return _difference(problem, np.ones(len(problem.rows)))


def _difference(problem: Problem, multipliers: Array) -> Matrix:
    """Return sum_j multipliers_j A_j as weights of tokens: positive for selected tokens, negative for the others."""
    weights = np.zeros(len(problem.group.x))
    np.subtract.at(weights, problem.rows, multipliers)
    np.add.at(weights, problem.selected[problem.sequence], multipliers)
    return Matrix(weights, problem.order)


def ridge(problem: Problem) -> Matrix:
    """Return ridge regression on x z^T with target 1 for selected tokens and 0 for others, centred by sequence."""
    group = problem.group
    tokens = np.union1d(problem.rows, problem.selected)
    sequence = group.sequence[tokens]
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    count = np.diff(np.append(starts, len(tokens)))[sequence]
    same = (sequence[:, None] == sequence) / count
    centre = np.eye(len(tokens)) - same
    target = centre @ np.isin(tokens, problem.selected).astype(np.float64)
    queries = group.queries[np.ix_(problem.order, problem.order)][np.ix_(sequence, sequence)]
    kernel = (centre @ (group.x[tokens] @ group.x[tokens].T) @ centre) * queries
    kernel[np.diag_indices_from(kernel)] += RIDGE * float(np.trace(kernel)) / len(kernel)
    coefficients = centre @ linalg.solve(kernel, target, assume_a="pos", check_finite=False)
    weights = np.zeros(len(group.x))
    weights[tokens] = coefficients
    return Matrix(weights, problem.order)


def majority(problem: Problem) -> FixedPosition:
    """Return the position selected most often, counted from the start or the end, whichever is right more often."""
    choices = problem.group.choices
    tokens = problem.selected - problem.group.start
    from_start = np.array([choice.positions[token] for choice, token in zip(choices, tokens, strict=True)])
    from_end = from_start - np.array([choice.length for choice in choices])
    (first, count), (last, count_from_end) = (_most_common(positions) for positions in (from_start, from_end))
    return FixedPosition(first if count >= count_from_end else last)


def _most_common(positions: Indices) -> tuple[int, int]:
    """Return the most common position and its count."""
    values, counts = np.unique(positions, return_counts=True)
    return int(values[counts.argmax()]), int(counts.max())
