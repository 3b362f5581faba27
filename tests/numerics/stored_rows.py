"""Unit vectors that are stored as the rows of a matrix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.numerics.moments import Array


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a matrix."""

    rows: Array

    @property
    def size(self) -> int:
        """Return the number of vectors."""
        return len(self.rows)

    @property
    def rank(self) -> int:
        """Return an upper bound on the rank."""
        return int(min(self.rows.shape))

    def combined(self, x: Array) -> Array:
        """Return the sum of x_j f_j."""
        return np.asarray(x @ self.rows)

    def values(self, w: Array) -> Array:
        """Return f_j . w for every j."""
        return np.asarray(self.rows @ w)

    def products(self, x: Array) -> Array:
        """Return f_j . (sum of x_k f_k) for every j."""
        return self.values(self.combined(x))

    def gram(self, where: NDArray[np.int64]) -> Array:
        """Return f_j . f_k for these j and k."""
        return np.asarray(self.rows[where] @ self.rows[where].T)

    def columns(self, where: NDArray[np.int64]) -> Array:
        """Return these vectors as columns."""
        return self.rows[where].T
