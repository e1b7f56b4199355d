"""What there is to tell about a run: before its worker starts, and when its steps are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsys_exp.config.schema import Config
from llmsys_exp.plan import Choice, Plan
from llmsys_exp.runs.measured import MemoryRow


@dataclass(frozen=True)
class Asked:
    """All there is to tell about a run before its worker starts."""

    config: Config
    choices: Sequence[Choice]
    command: Sequence[str]
    overrides: Sequence[str]
    inputs: Mapping[str, Any]
    python: str
    """Interpreter of the workers."""
    gpus: Sequence[str] = ()
    """Entries of CUDA_VISIBLE_DEVICES."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the worker."""
    plan: Plan | None = None
    """None: no training was planned."""
    serving: Mapping[str, Any] | None = None
    """How the engine is started that answers prompts."""
    engine_python: str | None = None
    """Interpreter of the engine that answers prompts, where it is started apart."""
    reproduces: str = ""
    """Id of the run that this one repeats."""


@dataclass(frozen=True)
class Finished:
    """All there is to tell about a run whose steps are done."""

    asked: Asked
    """As it ran in the end: after attempts that ran out of memory with other settings than at its launch."""
    results: Mapping[str, Mapping[str, Any]]
    timing_s: Mapping[str, float]
    memory: Sequence[MemoryRow] = ()
    attempts: Sequence[Mapping[str, Any]] = ()
    """Attempts that ran out of memory before the one that did not."""
