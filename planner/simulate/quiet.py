"""Keeps transformers, peft and DeepSpeed from talking while they are simulated."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module

from planner.forecasting import without_collecting


def load_deepspeed() -> None:
    """Import DeepSpeed, which says what it thinks of this machine, and on the standard output."""
    first, before = "deepspeed" not in sys.modules, logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(sys.stderr), without_collecting():  # its logger keeps the stream of this moment
            import_module("deepspeed")
            # imported while zero.Init has torch's constructors patched, it keeps the patched ones
            import_module("torch._dynamo")
    finally:
        logging.disable(before)
    if first:
        gc.freeze()  # DeepSpeed collects garbage in each start; what was imported is none


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
    """Only errors are said, for as long as this lasts: by libraries that are imported meanwhile, too."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
