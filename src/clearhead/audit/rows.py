"""A table of numbers that grows by rows: 8 bytes for each number, and no object for each row."""

import numpy as np

from clearhead.numerics.moments import Array

__all__ = ["Rows"]

GROWTH = 1.25
"""The factor by which the table grows when it is full."""


class Rows:
    """Rows of one length by index. Rows that were not put are NaN."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: Array = np.empty((0, width))
        self._count = 0

    def put(self, index: int, rows: Array) -> None:
        """Put rows at consecutive indices, from `index` on, after all rows so far."""
        end = index + len(rows)
        if end > len(self._rows):
            larger = np.full((max(end, int(GROWTH * len(self._rows))), self._width), np.nan)
            larger[: self._count] = self._rows[: self._count]
            self._rows = larger
        self._rows[index:end] = rows
        self._count = end

    def table(self, count: int) -> Array:
        """Return the first `count` rows."""
        table = np.full((count, self._width), np.nan)
        filled = min(count, self._count)
        table[:filled] = self._rows[:filled]
        return table
