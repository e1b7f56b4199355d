"""Engines that answer prompts, by name."""

from __future__ import annotations

from collections.abc import Callable

from llmsys_exp.errors import unknown_name
from llmsys_exp.workers.engines.base import Engine
from llmsys_exp.workers.job import Job


def _transformers(job: Job) -> Engine:
    from llmsys_exp.workers.engines.transformers_engine import TransformersEngine

    return TransformersEngine(job)


ENGINES: dict[str, Callable[[Job], Engine]] = {"transformers": _transformers}
"""To add an engine: one module with the methods of `Engine`, and one line here."""


def make_engine(job: Job) -> Engine:
    """Return the engine that the configuration names, not loaded yet."""
    name = job.config.inference.engine
    if name not in ENGINES:
        raise unknown_name("inference engine", name, list(ENGINES), where="inference.engine")
    return ENGINES[name](job)
