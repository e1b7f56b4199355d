"""Keeps transformers, peft and DeepSpeed from talking while they are simulated."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

TALKERS = ("DeepSpeed", "transformers", "peft", "torch")


@contextmanager
def quiet() -> Iterator[None]:
    """Only errors are said, for as long as this lasts."""
    loggers = [logging.getLogger(name) for name in TALKERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
