"""Sizes as polynomials of batch and length, carried through the play as ordinary whole numbers.

A micro-batch of 2^400 sequences of 2^80 tokens makes every size a number whose base-2^80 digits are the
coefficients of 1, s, s^2, b, b s and b s^2 (Kronecker substitution): sums of sizes are sums of numbers, and
the code that mirrors the model needs to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DIGIT_BITS = 80
LENGTH = 1 << DIGIT_BITS
BATCH = 1 << (5 * DIGIT_BITS)
DIGITS = (0, 1, 2, 5, 6, 7)  # of 1, s, s^2, b, b s, b s^2
_MASK = LENGTH - 1


def coefficients(value: int) -> list[float]:
    """Coefficients of a size.

    >>> coefficients(7 + 3 * BATCH * LENGTH)
    [7.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    """
    return [float(value >> (DIGIT_BITS * digit) & _MASK) for digit in DIGITS]


def table(values: Iterable[int]) -> Array:
    """One row of coefficients for each different value."""
    return np.array([coefficients(v) for v in sorted(set(values))] or [[0.0] * len(DIGITS)])


def features(batch: Any, length: Any) -> Array:
    """Powers that the coefficients multiply: [6, points]."""
    b, s = (np.asarray(x, dtype=np.float64) for x in np.broadcast_arrays(batch, length))
    one = np.ones_like(b)
    return np.stack([one, s, s * s, b, b * s, b * s * s])


def highest(rows: Array, at: Array) -> Array:
    """The largest of several polynomials at each point."""
    return np.asarray((rows @ at).max(axis=0))
