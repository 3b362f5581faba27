r"""The attention SVM of one head on a group of choices, and what it says of the head's own matrix.

All of it is inner products: with :math:`G` those of tokens and :math:`Q` those of queries, constraints have
:math:`\langle A_j, A_k\rangle = (\delta_j \cdot \delta_k)(z_j \cdot z_k)`, and :math:`\langle A_j, W\rangle` is a
difference of the head's scores. G is made once for a group and serves every head and every control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg

from clearhead.numerics.moments import Array
from clearhead.numerics.nonnegative_qp import nonnegative_qp
from clearhead.numerics.unit_rows import GramRows
from clearhead.theories.max_margin.on_heads.choices import Choice
from clearhead.theories.max_margin.svm.constraints import Constraints, Indices
from clearhead.theories.max_margin.svm.infeasibility import decide
from clearhead.theories.max_margin.svm.solution import Conflict

__all__ = ["Fit", "Group", "Problem", "fitted"]

COPY = 1e-9
"""A token nearer to the selected one than this share of the largest distance counts as the same token."""
CANCELS = 1e-4
"""Below this share of the tokens' square lengths, a square distance is computed from the difference itself: from inner
products it would be rounding error."""
LOW = 0.05


class Group:
    """The choices of some inputs, in the space of one head or of all: their tokens in one list, and inner products."""

    def __init__(self, choices: Sequence[Choice], side: int) -> None:
        self.choices = choices
        self.x = np.concatenate([choice.x[side] for choice in choices])
        self.z = np.stack([choice.z[side] for choice in choices])
        counts = [choice.x.shape[1] for choice in choices]
        self.start = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.sequence = np.repeat(np.arange(len(choices)), counts)
        self.drawn = np.concatenate([np.arange(choice.x.shape[1]) < choice.drawn for choice in choices])

    @cached_property
    def tokens(self) -> Array:
        """Inner products of all tokens."""
        return np.asarray(self.x @ self.x.T)

    @cached_property
    def queries(self) -> Array:
        """Inner products of all queries."""
        return np.asarray(self.z @ self.z.T)

    def selected(self, kind: str, draw: int, h: int) -> Indices:
        """Which token of the list each sequence selects."""
        return np.asarray(self.start + np.array([choice.selected[kind][draw, h] for choice in self.choices]))

    def scores(self, kind: str, draw: int, h: int) -> Array:
        """Of every token of the list."""
        return np.concatenate([choice.scores[kind][draw, h] for choice in self.choices])


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Each sequence must select a token of the list rather than those drawn for it.

    rows: the tokens that must not win; met: <A_j, W> of the head's own W, and norm: |W|
    order: whose query each sequence has
    near: whether a constraint's tokens are so near to each other that inner products lose their difference
    """

    group: Group
    selected: Indices
    rows: Indices
    order: Indices
    met: Array
    norm: float
    near: bool = False

    @classmethod
    def of(
        cls, group: Group, selected: Indices, scores: Array, norm: float, *, order: Indices | None = None
    ) -> "Problem":
        """The problem in which a head with these scores selects these tokens."""
        own = selected[group.sequence]
        square = np.diagonal(group.tokens)
        away = square + square[own] - 2 * group.tokens[np.arange(len(own)), own]
        cancels = np.flatnonzero(away < CANCELS * (square + square[own]))
        away[cancels] = np.square(group.x[own[cancels]] - group.x[cancels]).sum(axis=-1)
        rows = np.flatnonzero(group.drawn & (away > COPY**2 * away.max()))
        met = (scores[own] - scores)[rows]
        unmoved = np.arange(len(selected)) if order is None else order
        near = bool(np.isin(cancels, rows).any())
        return cls(group=group, selected=selected, rows=rows, order=unmoved, met=met, norm=norm, near=near)

    @property
    def sequence(self) -> Indices:
        """The sequence of each constraint."""
        return self.group.sequence[self.rows]

    @cached_property
    def gram(self) -> Array:
        """Return the inner products of the A_j."""
        sequence = self.sequence
        queries = self.group.queries[np.ix_(self.order, self.order)]
        return np.asarray(self._differences() * queries[np.ix_(sequence, sequence)])

    def _differences(self) -> Array:
        """Return the inner products of the token differences."""
        tokens, sequence = self.group.tokens, self.sequence
        if self.near:
            delta = self.group.x[self.selected][sequence] - self.group.x[self.rows]
            return np.asarray(delta @ delta.T)
        mixed = tokens[np.ix_(self.selected, self.rows)][sequence]
        delta = tokens[np.ix_(self.rows, self.rows)] - mixed - mixed.T
        delta += tokens[np.ix_(self.selected, self.selected)][np.ix_(sequence, sequence)]
        return np.asarray(delta)

    @cached_property
    def lengths(self) -> Array:
        """Norms of the A_j."""
        return np.sqrt(np.diagonal(self.gram))

    def constraints(self) -> Constraints:
        """The same in factors."""
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

    @property
    def separates(self) -> bool:
        """Whether the head's own W selects these tokens: true by construction of its own argmax."""
        return bool(self.problem.met.min() > 0)

    @cached_property
    def margins(self) -> Array:
        """<A_j, W^mm>."""
        return np.asarray(self.problem.gram @ self.multipliers)

    @property
    def size(self) -> float:
        """|W^mm|, the inverse of the best margin."""
        return float(np.sqrt(self.multipliers @ self.margins))

    def margin_ratio(self) -> float:
        """The margin of W relative to the best one."""
        return float(self.problem.met.min()) * self.size / self.problem.norm

    def low_margin_ratio(self) -> float:
        """The same at the 5 % quantile of both margins."""
        best = np.quantile(self.margins, LOW) / self.size
        return float(np.quantile(self.problem.met, LOW) / self.problem.norm / best)

    def cosine(self) -> float:
        """<W, W^mm> / |W| |W^mm|, through the multipliers: <W, sum l A> = sum l <A, W>."""
        return float(self.multipliers @ self.problem.met) / (self.size * self.problem.norm)

    def cosine_in_span(self) -> float:
        """The same for the part of W that these scores depend on, its projection on the span of the A_j."""
        lengths = self.problem.lengths
        met = self.problem.met / lengths
        unit = self.problem.gram / np.outer(lengths, lengths)
        return float(self.cosine() * self.problem.norm / np.sqrt(_inverse_form(unit, met)))

    def hebbian_cosine(self) -> float:
        """<W, H> / |W| |H| of the Hebbian matrix H = sum of all A_j."""
        return float(self.problem.met.sum()) / (float(np.sqrt(self.problem.gram.sum())) * self.problem.norm)

    def supports(self) -> Indices:
        """The constraints that hold the margin."""
        weights = self.multipliers * self.problem.lengths
        return np.flatnonzero(weights > 1e-9 * weights.max())


def _inverse_form(unit: Array, met: Array) -> float:
    """Return met^T (unit + 1e-10 I)^-1 met for a positive semi-definite matrix with ones on its diagonal."""
    shifted = unit.copy()
    shifted[np.diag_indices_from(shifted)] += 1e-10
    try:
        factor = linalg.cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
        return float(met @ linalg.cho_solve(factor, met, check_finite=False))
    except linalg.LinAlgError:
        # Rounding made an eigenvalue less than -1e-10; the exact matrix has none below zero.
        values, vectors = linalg.eigh(unit, check_finite=False)
        return float(np.square(met @ vectors) @ (1 / (np.maximum(values, 0) + 1e-10)))


def fitted(problem: Problem) -> Fit | None:
    """Solve it; None where no matrix selects these tokens."""
    found = _multipliers(problem, None)
    if found is None:
        # The gram says too little of infeasible problems; the arbiter sees the constraints themselves.
        decided = decide(problem.constraints(), np.ones(len(problem.rows)))
        if decided is None or isinstance(decided, Conflict):
            return None
        found = _multipliers(problem, decided.multipliers)
    return None if found is None else Fit(problem=problem, multipliers=found)


def _multipliers(problem: Problem, start: Array | None) -> Array | None:
    lengths = problem.lengths
    unit = float(1 / lengths.min())
    found = nonnegative_qp(
        GramRows(problem.gram / np.outer(lengths, lengths)),
        1 / (lengths * unit),
        start=None if start is None else start * lengths / unit,
    )
    return found.x * unit / lengths if found.converged else None
