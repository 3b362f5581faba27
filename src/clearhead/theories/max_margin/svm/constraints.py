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
from torch import Tensor

from clearhead.errors import InputError
from clearhead.numerics.moments import Array
from clearhead.shapes import Bool, Float, Int, ShapeError

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


def selection_constraints(
    x: Float[Tensor, "n t d"],
    z: Float[Tensor, "n e"] | None,
    selected: Int[Tensor, "n"],
    *,
    mask: Bool[Tensor, "n t"] | None = None,
) -> tuple[Constraints, NDArray[np.int64]]:
    """Return the constraints that each selected token scores highest, in float64, and the selected tokens.

    The arguments are those of `attention_svm`; raise InputError or ShapeError if they do not fit together.
    """
    n, t = x.shape[:2] if x.ndim == 3 else (-1, -1)
    wrong_z = z is not None and (z.ndim != 2 or z.shape[0] != n)
    if n < 0 or wrong_z or selected.shape != (n,) or (mask is not None and mask.shape != (n, t)):
        raise ShapeError(
            f"expected x (n, t, d), z (n, e), selected (n), mask (n, t); got {describe_shapes(x, z, selected, mask)}"
        )
    if selected.is_floating_point():
        raise InputError(f"expected selected of an integer dtype; got {selected.dtype}")
    tokens, queries, visible = visible_operands(x, z, mask)
    chosen: NDArray[np.int64] = selected.detach().cpu().numpy().astype(np.int64)
    nonempty = visible.any(axis=1)
    in_range = (chosen >= 0) & (chosen < t)
    if not in_range[nonempty].all() or not visible[nonempty, chosen[nonempty]].all():
        raise InputError("a selected token is out of range or hidden by the mask; select a visible token")
    others = visible.copy()
    others[nonempty, chosen[nonempty]] = False
    sequence, token = np.nonzero(others)
    count = len(sequence)
    constraints = Constraints(
        delta=tokens[sequence, chosen[sequence]] - tokens[sequence, token],
        z=queries,
        sequence=sequence,
        token=token,
        bound=np.ones(count),
        equal=np.zeros(count, dtype=bool),
    )
    return constraints, chosen


def visible_operands(
    x: Float[Tensor, "n t d"], z: Float[Tensor, "n e"] | None, mask: Bool[Tensor, "n t"] | None
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return tokens and queries in float64 and the mask, with zeros where the mask hides what may not be finite.

    Without z, every query is the number one, so that W is a vector.
    """
    visible = np.ones(x.shape[:2], dtype=bool)
    if mask is not None:
        visible = mask.detach().cpu().numpy().astype(bool)
        x = x.masked_fill(~mask[:, :, None], 0)
        z = None if z is None else z.masked_fill(~mask.any(dim=1)[:, None], 0)
    queries = np.ones((x.shape[0], 1)) if z is None else to_float64(z, "z")
    return to_float64(x, "x"), queries, visible


def to_float64(tensor: Tensor, name: str) -> Array:
    """Convert to a numpy array in float64; raise InputError if the dtype is not floating or an entry not finite."""
    if not tensor.is_floating_point():
        raise InputError(f"expected {name} of a floating dtype; got {tensor.dtype}")
    array: Array = tensor.detach().cpu().double().numpy()
    if not np.isfinite(array).all():
        raise InputError(f"{name} has entries that are not finite; correct or leave out those sequences")
    return array


def describe_shapes(x: Tensor, z: Tensor | None, selected: Tensor, mask: Tensor | None) -> str:
    """List the shapes of the operands for an error message."""
    operands = {"x": x, "z": z, "selected": selected, "mask": mask}
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in operands.items() if tensor is not None)
