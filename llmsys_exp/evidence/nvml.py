"""NVIDIA's management library through the package `nvidia-ml-py`, opened for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from llmsys_exp.evidence.errors import EvidenceError

PACKAGE = "nvidia-ml-py"


@contextmanager
def opened() -> Iterator[Any]:
    """Give the module `pynvml`, ready to be asked.

    Raises:
        EvidenceError: when the package is missing or the driver does not answer.
    """
    try:
        import pynvml
    except ImportError:
        raise EvidenceError(f"{PACKAGE} is not installed") from None
    try:
        pynvml.nvmlInit()
    except Exception as error:  # each failure of the driver has a class of its own
        raise EvidenceError(f"NVML does not start: {error}") from error
    try:
        yield pynvml
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()


def text(value: Any) -> str:
    """Return a name as text: older versions of the package give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
