"""Keeps transformers, peft and DeepSpeed from talking while they are simulated."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module

TALKERS = ("DeepSpeed", "transformers", "peft", "torch")


def load_deepspeed() -> None:
    """Import DeepSpeed, which says what it thinks of this machine, and on the standard output."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr):  # its logger keeps the stream of this moment
            import_module("deepspeed")
            # imported while zero.Init has torch's constructors patched, it keeps the patched ones
            import_module("torch._dynamo")
    finally:
        logging.disable(before)


@contextmanager
def same_environment() -> Iterator[None]:
    """Put the environment back as it is now: torch and DeepSpeed set variables that workers would inherit."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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
