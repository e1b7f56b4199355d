"""Engines that answer prompts, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmsys_exp.errors import unknown_name
from llmsys_exp.workers.engines.base import Engine
from llmsys_exp.workers.job import Job


def _transformers(job: Job) -> Engine:
    from llmsys_exp.workers.engines.transformers_engine import TransformersEngine

    return TransformersEngine(job)


def _sglang(job: Job) -> Engine:
    from llmsys_exp.workers.engines.sglang_engine import SglangEngine

    return SglangEngine(job)


def _sglang_server(job: Job) -> Engine:
    from llmsys_exp.workers.engines.sglang_server import SglangServerEngine

    return SglangServerEngine(job)


ENGINES: dict[str, Callable[[Job], Engine]] = {
    "transformers": _transformers,
    "sglang": _sglang,
    "sglang_server": _sglang_server,
}
"""To add an engine: one module with the methods of `Engine`, and one line here."""


def check_engine(job: Job) -> None:
    """Refuse an engine that is not known."""
    name = job.config.inference.engine
    if name not in ENGINES:
        raise unknown_name("inference engine", name, list(ENGINES), where="inference.engine")


def make_engine(job: Job) -> Engine:
    """Return the engine that the configuration names, not started yet."""
    check_engine(job)
    return ENGINES[job.config.inference.engine](job)


def make_reference(job: Job) -> Engine:
    """Return the transformers engine, to compare others with: one prompt at a time, whatever the job says."""
    inference = replace(job.config.inference, engine="transformers", batch_size=1)
    return _transformers(replace(job, config=replace(job.config, inference=inference)))
