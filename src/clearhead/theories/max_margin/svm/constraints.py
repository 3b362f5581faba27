r"""The constraints of an attention SVM, in factors.

Token t of sequence i must score lower than the one selected, :math:`(x_{i\alpha_i} - x_{it})^T W z_i \ge b_{it}`. With
:math:`\delta_{it} = x_{i\alpha_i} - x_{it}` the constraint is :math:`\langle A_{it}, W\rangle \ge b_{it}`,
:math:`A_{it} = \delta_{it} z_i^T`, a matrix of rank one: a stack of them is never formed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from clearhead.numerics.moments import Array

__all__ = ["Constraints", "UnitConstraints"]

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """<A_j, W> >= bound_j, or = where `equal`, with A_j = delta_j z_i^T for i = sequence_j.

    Rows of one sequence stand together. `token` is the token of the row that must not win.
    """

    delta: Array
    z: Array
    sequence: Indices
    token: Indices
    bound: Array
    equal: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.delta)

    @cached_property
    def lengths(self) -> Array:
        """Norms of the A_j."""
        found: Array = np.linalg.norm(self.delta, axis=1) * np.linalg.norm(self.z, axis=1)[self.sequence]
        return found

    @cached_property
    def units(self) -> Array:
        """What the A_j are divided by to have length one: their norms, and one where a norm is zero."""
        lengths = self.lengths
        return np.where(lengths > 0, lengths, 1.0)

    def values(self, W: Array) -> Array:
        """<A_j, W> for every row."""
        found: Array = np.einsum("jd,jd->j", self.delta, (self.z @ W.T)[self.sequence])
        return found

    def combined(self, weights: Array) -> Array:
        """The sum of weights_j A_j."""
        return self.by_sequence(weights).T @ self.z

    def by_sequence(self, weights: Array) -> Array:
        """(n, d): the sum of weights_j delta_j over the rows of each sequence, the other factor of `combined`."""
        found = np.zeros((len(self.z), self.delta.shape[1]))
        rows = np.flatnonzero(weights)
        if len(rows):
            sequence = self.sequence[rows]
            starts = np.flatnonzero(np.concatenate([[True], sequence[1:] != sequence[:-1]]))
            found[sequence[starts]] = np.add.reduceat(weights[rows, None] * self.delta[rows], starts, axis=0)
        return found

    def at(self, rows: Indices) -> "Constraints":
        """These rows alone, in their order."""
        return Constraints(
            delta=self.delta[rows],
            z=self.z,
            sequence=self.sequence[rows],
            token=self.token[rows],
            bound=self.bound[rows],
            equal=self.equal[rows],
        )


class UnitConstraints:
    """The A_j after each is scaled to length one.

    Up to `STORED` of them their inner products are stored; beyond, products go through the factors, and memory does not
    grow with their square.
    """

    STORED = 1500

    def __init__(self, constraints: Constraints) -> None:
        self._rows = constraints
        self._inverse = 1 / constraints.units
        self._queries = constraints.z @ constraints.z.T
        stored = constraints.count <= self.STORED
        self._gram = self._made(np.arange(constraints.count)) if stored else None

    @property
    def size(self) -> int:
        """How many there are."""
        return self._rows.count

    @property
    def rank(self) -> int:
        """A bound on how many are independent: the matrices W have so many entries."""
        rows = self._rows
        return min(rows.count, int(rows.delta.shape[1]) * int(min(rows.z.shape)))

    def combined(self, x: Array) -> Array:
        """The sum of x_j A_j."""
        return self._rows.combined(self._inverse * x)

    def values(self, w: Array) -> Array:
        """<A_j, w> for every j."""
        return self._inverse * self._rows.values(w)

    def products(self, x: Array) -> Array:
        """<A_j, sum of x_k A_k> for every j."""
        return self.values(self.combined(x)) if self._gram is None else np.asarray(self._gram @ x)

    def gram(self, where: Indices) -> Array:
        """<A_j, A_k> for these j and k."""
        return self._made(where) if self._gram is None else self._gram[np.ix_(where, where)]

    def columns(self, where: Indices) -> Array:
        """These A_j, as columns, in coordinates of what they span: at most as many as there are columns."""
        delta, sequence = self._rows.delta[where] * self._inverse[where, None], self._rows.sequence[where]
        left = linalg.qr(delta.T, mode="r")[0][: min(delta.shape)].T
        used, place = np.unique(sequence, return_inverse=True)
        z = self._rows.z[used]
        right = linalg.qr(z.T, mode="r")[0][: min(z.shape)].T[place]
        found = np.einsum("ja,jb->abj", left, right).reshape(-1, len(where))
        return np.asarray(linalg.qr(found, mode="r")[0][: len(where)] if len(found) > len(where) else found)

    def _made(self, where: Indices) -> Array:
        delta, sequence = self._rows.delta[where] * self._inverse[where, None], self._rows.sequence[where]
        return (delta @ delta.T) * self._queries[np.ix_(sequence, sequence)]
