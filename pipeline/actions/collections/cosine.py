"""Cosine similarity of one vector with many, in plain Python or with numpy, to the same nine digits."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import mul

_BLOCK = 1024
"""Rows worked on at once with numpy: they are copied at double precision."""
_DIGITS = 9
"""Sums of different order agree on so many, which is more than 32-bit numbers carry."""


def _quotient(dot: float, lengths: float) -> float:
    """The cosine of two vectors from their product and the product of their lengths; 0 if one has no length."""
    return round(min(1.0, max(-1.0, dot / lengths)), _DIGITS) if lengths else 0.0


class Matrix:
    """Rows of 32-bit numbers in one piece of memory, with their lengths."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.values = array("f")
        self.lengths = array("d")

    def __len__(self) -> int:
        return len(self.lengths)

    def put(self, row: int, vector: array[float]) -> None:
        """Write row `row`, which is there already or is the next."""
        self.values[row * self.dimensions : (row + 1) * self.dimensions] = vector
        self.lengths[row : row + 1] = array("d", [math.hypot(*vector)])

    def row(self, row: int) -> array[float]:
        """A copy of one row."""
        return self.values[row * self.dimensions : (row + 1) * self.dimensions]


Scorer = Callable[[Matrix, Sequence[int], Sequence[float]], list[float]]
"""(matrix, numbers of rows, a vector) -> the cosine of each of these rows with the vector."""


def pure(matrix: Matrix, rows: Sequence[int], vector: Sequence[float]) -> list[float]:
    """The scorer that needs nothing but Python."""
    length = math.hypot(*vector)
    return [_quotient(sum(map(mul, matrix.row(r), vector)), matrix.lengths[r] * length) for r in rows]


def with_numpy(matrix: Matrix, rows: Sequence[int], vector: Sequence[float]) -> list[float]:
    """The same about eight times faster; numpy must be installed."""
    import numpy as np

    if not rows:
        return []
    values = np.frombuffer(matrix.values, dtype=np.float32).reshape(-1, matrix.dimensions)
    wanted, length = np.array(vector, dtype=np.float64), math.hypot(*vector)

    def dots() -> Iterator[float]:
        for at in range(0, len(rows), _BLOCK):
            yield from (values[rows[at : at + _BLOCK]].astype(np.float64) @ wanted).tolist()

    return [_quotient(dot, matrix.lengths[r] * length) for r, dot in zip(rows, dots(), strict=True)]


def fastest() -> Scorer:
    """The scorer with numpy where it can be imported."""
    try:
        import numpy  # noqa: F401, ICN001
    except ImportError:
        return pure
    return with_numpy
