"""Units and rounding used all over the planner. Bytes inside, GiB where a person reads."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


def ceil_div(value: int, by: int) -> int:
    """Divide and round up.

    >>> ceil_div(7, 2)
    4
    """
    return -(-value // by)


def round_up(value: int, to: int) -> int:
    """Round up to a multiple.

    >>> round_up(513, 512)
    1024
    """
    return -(-value // to) * to


def gib(nbytes: float) -> float:
    """Bytes to GiB."""
    return nbytes / GIB
