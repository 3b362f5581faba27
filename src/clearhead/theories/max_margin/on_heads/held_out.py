"""Which token a rule that was fitted on some sequences selects in others."""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from clearhead.numerics.moments import Array
from clearhead.theories.max_margin.on_heads.problems import Fit, Group, Problem
from clearhead.theories.max_margin.svm.constraints import Indices

__all__ = ["Matrix", "Place", "Trial", "hebbian", "majority", "margin", "ridge"]

RIDGE = 0.1
"""Of the mean square of the features."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """x^T W z with W the sum over tokens of weight x_t z^T, z the query of the token's sequence, by `order`."""

    weights: Array
    order: Indices


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the sequence, from the end if it is negative."""

    place: int


class Trial:
    """A group to fit rules on, and another to try them on."""

    def __init__(self, fitted: Group, tried: Group) -> None:
        self._fitted, self._tried = fitted, tried
        self._tokens = tried.x @ fitted.x.T
        self._queries = tried.z @ fitted.z.T
        self._places = np.concatenate([choice.places for choice in tried.choices])
        self._lengths = np.array([choice.length for choice in tried.choices])

    def share_right(self, rule: Matrix | Place | None, kind: str, draw: int, h: int) -> float:
        """In how many sequences the rule selects, among the tokens drawn and the selected one, what the head does.

        NaN without a rule.
        """
        if rule is None:
            return float("nan")
        group, scores = self._tried, self._scores(rule)
        selected = group.selected(kind, draw, h)
        open_to_choice = group.drawn.copy()
        open_to_choice[selected] = True
        scores = np.where(open_to_choice, scores, -np.inf)
        best = np.maximum.reduceat(scores, group.start)
        # A rule that scores all tokens alike selects none.
        equal = np.add.reduceat(scores == best[group.sequence], group.start)
        return float(((scores[selected] == best) & (equal == 1)).mean())

    def _scores(self, rule: Matrix | Place) -> Array:
        group = self._tried
        if isinstance(rule, Place):
            wanted = rule.place if rule.place >= 0 else self._lengths + rule.place
            places = np.broadcast_to(wanted, len(self._lengths))[group.sequence]
            return np.asarray(self._places == places, dtype=np.float64)
        used = np.flatnonzero(rule.weights)
        queries = self._queries[:, rule.order][:, self._fitted.sequence[used]] * rule.weights[used]
        return np.asarray(np.einsum("jk,jk->j", self._tokens[:, used], queries[group.sequence]))


def margin(fit: Fit) -> Matrix:
    """The attention SVM."""
    return _difference(fit.problem, fit.multipliers)


def hebbian(problem: Problem) -> Matrix:
    """The sum of all constraints, which has nothing to solve."""
    return _difference(problem, np.ones(len(problem.rows)))


def _difference(problem: Problem, multipliers: Array) -> Matrix:
    """Of selected tokens less the others, as weights of tokens."""
    weights = np.zeros(len(problem.group.x))
    np.subtract.at(weights, problem.rows, multipliers)
    np.add.at(weights, problem.selected[problem.sequence], multipliers)
    return Matrix(weights, problem.order)


def ridge(problem: Problem) -> Matrix:
    """Ridge regression on x z^T of one for the selected token and zero for the others, less the sequence's mean."""
    group = problem.group
    tokens = np.union1d(problem.rows, problem.selected)
    sequence = group.sequence[tokens]
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    count = np.diff(np.append(starts, len(tokens)))[sequence]
    same = (sequence[:, None] == sequence) / count
    centre = np.eye(len(tokens)) - same
    wanted = centre @ np.isin(tokens, problem.selected).astype(np.float64)
    queries = group.queries[np.ix_(problem.order, problem.order)][np.ix_(sequence, sequence)]
    kernel = (centre @ group.tokens[np.ix_(tokens, tokens)] @ centre) * queries
    kernel[np.diag_indices_from(kernel)] += RIDGE * float(np.trace(kernel)) / len(kernel)
    found = centre @ linalg.solve(kernel, wanted, assume_a="pos", check_finite=False)
    weights = np.zeros(len(group.x))
    weights[tokens] = found
    return Matrix(weights, problem.order)


def majority(problem: Problem) -> Place:
    """The place that was selected most often, counted from the front or from the end, whichever is more often right."""
    choices = problem.group.choices
    at = problem.selected - problem.group.start
    places = np.array([choice.places[token] for choice, token in zip(choices, at, strict=True)])
    behind = places - np.array([choice.length for choice in choices])
    (front, right), (back, right_back) = (_most_common(x) for x in (places, behind))
    return Place(front if right >= right_back else back)


def _most_common(places: Indices) -> tuple[int, int]:
    values, counts = np.unique(places, return_counts=True)
    return int(values[counts.argmax()]), int(counts.max())
