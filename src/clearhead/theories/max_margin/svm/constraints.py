r"""The constraints of an attention SVM, stored as factors.

Token t of sequence i must score lower than the selected token: :math:`(x_{i\alpha_i} - x_{it})^T W z_i \ge b_{it}`.
With :math:`\delta_{it} = x_{i\alpha_i} - x_{it}` the constraint is :math:`\langle A_{it}, W\rangle \ge b_{it}` for the
rank-one matrix :math:`A_{it} = \delta_{it} z_i^T`. The matrices themselves are never formed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from clearhead.numerics.moments import Array

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Constraints <A_j, W> >= bound_j, or = bound_j if `equal`, with A_j = delta_j z_i^T and i = sequence_j.

    Constraints of the same sequence are consecutive. `token` is the token that must score lower than the selected one.
    """

    delta: Array
    z: Array
    sequence: Indices
    token: Indices
    bound: Array
    equal: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Number of constraints."""
        return len(self.delta)

    @cached_property
    def lengths(self) -> Array:
        """Norms of the A_j."""
        lengths: Array = np.linalg.norm(self.delta, axis=1) * np.linalg.norm(self.z, axis=1)[self.sequence]
        return lengths

    @cached_property
    def units(self) -> Array:
        """Divisors that scale the A_j to length one: their norms, or one if the norm is zero."""
        lengths = self.lengths
        return np.where(lengths > 0, lengths, 1.0)

    def values(self, W: Array) -> Array:
        """Return <A_j, W> for every constraint."""
        values: Array = np.einsum("jd,jd->j", self.delta, (self.z @ W.T)[self.sequence])
        return values

    def combined(self, weights: Array) -> Array:
        """Return sum_j weights_j A_j."""
        return self.by_sequence(weights).T @ self.z

    def by_sequence(self, weights: Array) -> Array:
        """Return the sum of weights_j delta_j over the constraints of each sequence, (n, d)."""
        sums = np.zeros((len(self.z), self.delta.shape[1]))
        rows = np.flatnonzero(weights)
        if len(rows):
            sequence = self.sequence[rows]
            starts = np.flatnonzero(np.concatenate([[True], sequence[1:] != sequence[:-1]]))
            sums[sequence[starts]] = np.add.reduceat(weights[rows, None] * self.delta[rows], starts, axis=0)
        return sums

    def at(self, rows: Indices) -> "Constraints":
        """Return the constraints with these indices, in their order."""
        return Constraints(
            delta=self.delta[rows],
            z=self.z,
            sequence=self.sequence[rows],
            token=self.token[rows],
            bound=self.bound[rows],
            equal=self.equal[rows],
        )


class UnitConstraints:
    """The constraint matrices A_j scaled to length one, as the rows of a `NonnegativeQP`.

    Up to `LARGEST_GRAM` constraints the Gram matrix is stored. Beyond that, products are computed from the factors, so
    memory does not grow with the square of the number of constraints.
    """

    LARGEST_GRAM = 1500

    def __init__(self, constraints: Constraints) -> None:
        self._rows = constraints
        self._inverse = 1 / constraints.units
        self._queries = constraints.z @ constraints.z.T
        stored = constraints.count <= self.LARGEST_GRAM
        self._gram = self._compute_gram(np.arange(constraints.count)) if stored else None

    @property
    def size(self) -> int:
        """Number of constraints."""
        return self._rows.count

    @property
    def rank(self) -> int:
        """Upper bound on the number of linearly independent A_j."""
        rows = self._rows
        return min(rows.count, int(rows.delta.shape[1]) * int(min(rows.z.shape)))

    def combined(self, x: Array) -> Array:
        """Return sum_j x_j A_j."""
        return self._rows.combined(self._inverse * x)

    def values(self, w: Array) -> Array:
        """Return <A_j, w> for every j."""
        return self._inverse * self._rows.values(w)

    def products(self, x: Array) -> Array:
        """Return <A_j, sum_k x_k A_k> for every j."""
        return self.values(self.combined(x)) if self._gram is None else np.asarray(self._gram @ x)

    def gram(self, where: Indices) -> Array:
        """Return <A_j, A_k> for these j and k."""
        return self._compute_gram(where) if self._gram is None else self._gram[np.ix_(where, where)]

    def columns(self, where: Indices) -> Array:
        """Return these A_j as columns, in an orthonormal basis of their span (at most as many rows as columns)."""
        delta, sequence = self._rows.delta[where] * self._inverse[where, None], self._rows.sequence[where]
        left = linalg.qr(delta.T, mode="r")[0][: min(delta.shape)].T
        sequences, index = np.unique(sequence, return_inverse=True)
        z = self._rows.z[sequences]
        right = linalg.qr(z.T, mode="r")[0][: min(z.shape)].T[index]
        columns = np.einsum("ja,jb->abj", left, right).reshape(-1, len(where))
        return np.asarray(linalg.qr(columns, mode="r")[0][: len(where)] if len(columns) > len(where) else columns)

    def _compute_gram(self, where: Indices) -> Array:
        delta, sequence = self._rows.delta[where] * self._inverse[where, None], self._rows.sequence[where]
        return (delta @ delta.T) * self._queries[np.ix_(sequence, sequence)]
