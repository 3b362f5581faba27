"""Sets of unit vectors, as quadratic programs need them."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from clearhead.numerics.moments import Array


@runtime_checkable
class UnitRows(Protocol):
    """Unit vectors f_j, which need not be stored; they and w are arrays of one shape."""

    @property
    def size(self) -> int:
        """Return the number of vectors."""

    @property
    def rank(self) -> int:
        """Return an upper bound on the rank."""

    def combined(self, x: Array) -> Array:
        """Return the sum of x_j f_j."""

    def values(self, w: Array) -> Array:
        """Return f_j . w for every j."""

    def products(self, x: Array) -> Array:
        """Return f_j . (sum of x_k f_k) for every j; faster than `values(combined(x))` if the products are stored."""

    def gram(self, where: NDArray[np.int64]) -> Array:
        """Return f_j . f_k for these j and k."""

    def columns(self, where: NDArray[np.int64]) -> Array:
        """Return these vectors as columns, in coordinates of a space that contains them."""


@dataclass(frozen=True, slots=True)
class GramRows:
    """Vectors given by their inner products; a vector w in their span is given by its products with them."""

    products_of_pairs: Array

    @property
    def size(self) -> int:
        """Return the number of vectors."""
        return len(self.products_of_pairs)

    @property
    def rank(self) -> int:
        """Return an upper bound on the rank."""
        return self.size

    def combined(self, x: Array) -> Array:
        """Return the sum of x_j f_j, as its products."""
        return np.asarray(self.products_of_pairs @ x)

    def values(self, w: Array) -> Array:
        """Return f_j . w for every j: w itself."""
        return w

    def products(self, x: Array) -> Array:
        """Return f_j . (sum of x_k f_k) for every j."""
        return self.combined(x)

    def gram(self, where: NDArray[np.int64]) -> Array:
        """Return f_j . f_k for these j and k."""
        return self.products_of_pairs[np.ix_(where, where)]

    def columns(self, where: NDArray[np.int64]) -> Array:
        """Return these vectors as columns, from a root of their products, which halves the digits of short ones."""
        squares, basis = np.linalg.eigh(self.gram(where))
        return np.asarray(np.sqrt(np.maximum(squares, 0))[:, None] * basis.T)
