"""Vectors of length one, as programs over them need them."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from clearhead.numerics.moments import Array

__all__ = ["StoredRows", "UnitRows"]


@runtime_checkable
class UnitRows(Protocol):
    """Vectors f_j of length one, which need not be stored; they and w are arrays of any one shape."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def rank(self) -> int:
        """A bound on how many are independent."""

    def combined(self, x: Array) -> Array:
        """The sum of x_j f_j."""

    def values(self, w: Array) -> Array:
        """f_j . w for every j."""

    def products(self, x: Array) -> Array:
        """f_j . (sum of x_k f_k) for every j; quicker than both of the above where these products are stored."""

    def gram(self, where: NDArray[np.int64]) -> Array:
        """f_j . f_k for these j and k."""

    def columns(self, where: NDArray[np.int64]) -> Array:
        """These vectors, as columns, in coordinates of a space that holds them."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a matrix."""

    rows: Array

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def rank(self) -> int:
        """A bound on how many are independent."""
        return int(min(self.rows.shape))

    def combined(self, x: Array) -> Array:
        """The sum of x_j f_j."""
        return np.asarray(x @ self.rows)

    def values(self, w: Array) -> Array:
        """f_j . w for every j."""
        return np.asarray(self.rows @ w)

    def products(self, x: Array) -> Array:
        """f_j . (sum of x_k f_k) for every j."""
        return self.values(self.combined(x))

    def gram(self, where: NDArray[np.int64]) -> Array:
        """f_j . f_k for these j and k."""
        return np.asarray(self.rows[where] @ self.rows[where].T)

    def columns(self, where: NDArray[np.int64]) -> Array:
        """These vectors, as columns."""
        return self.rows[where].T
