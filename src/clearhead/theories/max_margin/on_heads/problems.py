r"""The attention SVM of one head on a group of choices, compared with the head's own matrix W.

Everything follows from inner products: :math:`\langle A_j, A_k\rangle = (\delta_j \cdot \delta_k)(z_j \cdot z_k)` for
the constraints, and :math:`\langle A_j, W\rangle` is a difference of the head's scores. The Gram matrix of the sampled
tokens is computed once for a group and serves every head and every control.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg

from clearhead.numerics.least_distance import GramRows
from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import NonnegativeQP
from clearhead.theories.max_margin.on_heads.choices import Choice
from clearhead.theories.max_margin.svm.constraints import Constraints, Indices
from clearhead.theories.max_margin.svm.frobenius import decide
from clearhead.theories.max_margin.svm.solution import Conflict

COPY = 1e-9
"""A token whose distance from the selected one is below this share of the largest distance counts as a copy of it."""
CANCELLATION = 1e-4
"""Squared distances below this share of the tokens' squared lengths are computed from the difference: inner products
would leave only rounding error."""
LOW_QUANTILE = 0.05


class Group:
    """The choices of some inputs in the space of one head or of all: their tokens in one list, and Gram matrices."""

    def __init__(self, choices: Sequence[Choice], side: int) -> None:
        self.choices = choices
        self.x = np.concatenate([choice.x[side] for choice in choices]).astype(np.float64, copy=False)
        self.z = np.stack([choice.z[side] for choice in choices]).astype(np.float64, copy=False)
        counts = [choice.x.shape[1] for choice in choices]
        self.start = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.sequence = np.repeat(np.arange(len(choices)), counts)
        self.in_sample = np.concatenate([np.arange(choice.x.shape[1]) < choice.sample_size for choice in choices])
        self.sample_index = np.cumsum(self.in_sample) - 1

    @cached_property
    def tokens(self) -> Array:
        """Gram matrix of the sampled tokens; `sample_index` has the row of each."""
        sample = self.x[self.in_sample]
        return np.asarray(sample @ sample.T)

    @cached_property
    def queries(self) -> Array:
        """Gram matrix of all queries."""
        return np.asarray(self.z @ self.z.T)

    def selected(self, kind: str, draw: int, h: int) -> Indices:
        """Return the index in the list of the token that each sequence selects."""
        return np.asarray(self.start + np.array([choice.selected[kind][draw, h] for choice in self.choices]))

    def scores(self, kind: str, draw: int, h: int) -> Array:
        """Return the score of every token of the list."""
        return np.concatenate([choice.scores[kind][draw, h] for choice in self.choices])


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem that each sequence selects one token of the list rather than its other sampled tokens.

    selected: the token that each sequence selects
    rows: the tokens of the constraints, which must score lower
    order: the sequence whose query each sequence uses
    head_margins: <A_j, W> for the head's W; norm: |W|
    cancels: whether two tokens of a constraint are so close that inner products lose their difference
    """

    group: Group
    selected: Indices
    rows: Indices
    order: Indices
    head_margins: Array
    norm: float
    cancels: bool = False

    @classmethod
    def of(
        cls, group: Group, selected: Indices, scores: Array, norm: float, *, order: Indices | None = None
    ) -> "Problem":
        """Return the problem in which a head with these scores selects these tokens."""
        rows = np.flatnonzero(group.in_sample)
        token, chosen = group.x[rows], group.x[selected[group.sequence[rows]]]
        distance, size = (np.square(x).sum(axis=-1) for x in (chosen - token, np.hstack([chosen, token])))
        different = distance > COPY**2 * distance.max()
        rows = rows[different]
        return cls(
            group=group,
            selected=selected,
            rows=rows,
            order=np.arange(len(selected)) if order is None else order,
            head_margins=scores[selected[group.sequence[rows]]] - scores[rows],
            norm=norm,
            cancels=bool((distance < CANCELLATION * size)[different].any()),
        )

    @property
    def sequence(self) -> Indices:
        """The sequence of each constraint."""
        return self.group.sequence[self.rows]

    @cached_property
    def gram(self) -> Array:
        """Gram matrix of the A_j."""
        sequence = self.sequence
        queries = self.group.queries[np.ix_(self.order, self.order)]
        return np.asarray(self._differences() * queries[np.ix_(sequence, sequence)])

    def _differences(self) -> Array:
        """Return the inner products of the token differences."""
        group, sequence = self.group, self.sequence
        token, chosen = group.x[self.rows], group.x[self.selected]
        if self.cancels:
            delta = chosen[sequence] - token
            return np.asarray(delta @ delta.T)
        mixed, index = (chosen @ token.T)[sequence], group.sample_index[self.rows]
        delta = group.tokens[np.ix_(index, index)] - mixed - mixed.T
        delta += (chosen @ chosen.T)[np.ix_(sequence, sequence)]
        return np.asarray(delta)

    @cached_property
    def lengths(self) -> Array:
        """Norms of the A_j."""
        return np.sqrt(np.diagonal(self.gram))

    def constraints(self) -> Constraints:
        """Return the constraints as factors."""
        sequence = self.sequence
        return Constraints(
            delta=self.group.x[self.selected][sequence] - self.group.x[self.rows],
            z=self.group.z[self.order],
            sequence=sequence,
            token=self.rows - self.group.start[sequence],
            bound=np.ones(len(sequence)),
            equal=np.zeros(len(sequence), dtype=bool),
        )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A problem solved in the Frobenius norm: W^mm is the sum of multipliers_j A_j."""

    problem: Problem
    multipliers: Array

    def with_matrix(self, scores: Array, norm: float) -> "Fit":
        """Return the same solution, compared with the matrix that gives the tokens of the list these scores."""
        problem = self.problem
        margins = scores[problem.selected[problem.sequence]] - scores[problem.rows]
        return dataclasses.replace(self, problem=dataclasses.replace(problem, head_margins=margins, norm=norm))

    @property
    def separates(self) -> bool:
        """True if the head's W selects these tokens; true by construction if they are its argmax."""
        return bool(self.problem.head_margins.min() > 0)

    @property
    def _norm(self) -> float:
        """|W|; NaN for a matrix of zeros, which has no direction and so no margin ratio and no cosine."""
        return self.problem.norm or float("nan")

    @cached_property
    def margins(self) -> Array:
        """<A_j, W^mm> for every constraint."""
        return np.asarray(self.problem.gram @ self.multipliers)

    @property
    def size(self) -> float:
        """|W^mm|, the inverse of the largest margin."""
        return float(np.sqrt(self.multipliers @ self.margins))

    def margin_ratio(self) -> float:
        """Return the margin of W relative to the largest margin, [min_j <A_j, W> / |W|] |W^mm|."""
        return float(self.problem.head_margins.min()) * self.size / self._norm

    def largest_ratio(self) -> float:
        """Return the largest distance of two scores in that unit, which the rounding of margins is relative to."""
        return float(np.abs(self.problem.head_margins).max()) * self.size / self._norm

    def low_margin_ratio(self) -> float:
        """Return the ratio of the 5 % quantiles of both margins instead of their minima."""
        best = np.quantile(self.margins, LOW_QUANTILE) / self.size
        return float(np.quantile(self.problem.head_margins, LOW_QUANTILE) / self._norm / best)

    def cosine(self) -> float:
        """Return <W, W^mm> / (|W| |W^mm|), from <W, sum_j l_j A_j> = sum_j l_j <A_j, W>."""
        return float(self.multipliers @ self.problem.head_margins) / (self.size * self._norm)

    def cosine_in_span(self) -> float:
        """Return the cosine for the projection of W on the span of the A_j, on which alone these scores depend."""
        lengths = self.problem.lengths
        unit = self.problem.gram / np.outer(lengths, lengths)
        projected = _inverse_form(unit, self.problem.head_margins / lengths)
        return float(self.cosine() * self._norm / np.sqrt(projected))

    def hebbian_cosine(self) -> float:
        """Return <W, H> / (|W| |H|) for the Hebbian matrix H = sum_j A_j."""
        return float(self.problem.head_margins.sum()) / (float(np.sqrt(self.problem.gram.sum())) * self._norm)

    def supports(self) -> Indices:
        """Return the constraints with a nonzero multiplier."""
        weights = self.multipliers * self.problem.lengths
        return np.flatnonzero(weights > 1e-9 * weights.max())


def _inverse_form(unit: Array, v: Array) -> float:
    """Return v^T (unit + 1e-10 I)^-1 v for a positive semi-definite matrix with ones on its diagonal."""
    shifted = unit.copy()
    shifted[np.diag_indices_from(shifted)] += 1e-10
    try:
        factor = linalg.cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
        return float(v @ linalg.cho_solve(factor, v, check_finite=False))
    except linalg.LinAlgError:
        # Rounding made an eigenvalue less than -1e-10; the exact matrix has no negative one.
        values, vectors = linalg.eigh(unit, check_finite=False)
        return float(np.square(v @ vectors) @ (1 / (np.maximum(values, 0) + 1e-10)))


def fit_problem(problem: Problem) -> Fit | None:
    """Return the attention SVM of least Frobenius norm; None if no matrix selects these tokens."""
    multipliers = _multipliers(problem, None)
    if multipliers is None:
        # The Gram matrix alone does not decide feasibility; the constraints do.
        decision = decide(problem.constraints(), np.ones(len(problem.rows)))
        if decision is None or isinstance(decision, Conflict):
            return None
        multipliers = _multipliers(problem, decision.multipliers)
    return None if multipliers is None else Fit(problem=problem, multipliers=multipliers)


def _multipliers(problem: Problem, start: Array | None) -> Array | None:
    """Solve the dual for the multipliers, from those of `start` if given; None if it does not converge."""
    lengths = problem.lengths
    unit = float(1 / lengths.min())
    program = NonnegativeQP(GramRows(problem.gram / np.outer(lengths, lengths)))
    dual = program.solve(1 / (lengths * unit), start=None if start is None else start * lengths / unit)
    return dual.x * unit / lengths if dual.converged else None
