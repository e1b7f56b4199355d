"""Gather what is known at launch: packages, machine and code, side by side and each for itself."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llmsys_exp.evidence.code import code_facts
from llmsys_exp.evidence.errors import noted
from llmsys_exp.evidence.machine import machine_facts, system_name
from llmsys_exp.evidence.packages import installed
from llmsys_exp.evidence.variables import variables

T = TypeVar("T")
_UNKNOWN: Mapping[str, Any] = {"python": None, "executable": None, "packages": {}, "cuda": None, "nccl": None}
_OF_MACHINE = ("cuda", "nccl")
COMMAND = "llmsys"


@dataclass(frozen=True)
class Sources:
    """Where the evidence of a run is."""

    python: str
    """Interpreter of the workers."""
    others: Mapping[str, str]
    """What else takes part, such as the engine that answers -> its interpreter."""
    gpus: Sequence[str]
    """Entries of CUDA_VISIBLE_DEVICES."""
    env: Mapping[str, str]
    """Environment of the worker."""
    patch_file: Path
    skip: Sequence[Path]
    """Folders whose untracked files are nobody's source."""


class Gathering:
    """Begins at once; `facts` holds what is there by then."""

    def __init__(self, sources: Sources) -> None:
        self.notes: list[str] = []
        self._sources = sources
        pool = ThreadPoolExecutor(3, thread_name_prefix="evidence")
        self._pieces: dict[str, Future[Any]] = {
            "environment": pool.submit(self._environment),
            "machine": pool.submit(self._noted, "machine", self._machine, {}),
            "code": pool.submit(self._noted, "code", self._code, None),
        }
        pool.shutdown(wait=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until all is there, or the time is over."""
        wait(self._pieces.values(), timeout=timeout_s)

    def facts(self) -> dict[str, Any]:
        """Return the manifest's parts `environment`, `machine` and `code`, as far as they are known."""
        environment = dict(self._done("environment", {}))
        of_torch = {key: environment.pop(key, None) for key in _OF_MACHINE}
        machine = self._done("machine", {})
        return {
            "environment": environment,
            "machine": {**machine, **of_torch} if machine else {},
            "code": self._done("code", None),
        }

    def _done(self, piece: str, otherwise: T) -> T:
        future = self._pieces[piece]
        return future.result() if future.done() else otherwise

    def _noted(self, what: str, find: Callable[[], T], otherwise: T) -> T:
        return noted(self.notes, what, find, otherwise)

    def _environment(self) -> dict[str, Any]:
        sources = self._sources
        mine = self._noted("packages", lambda: installed(sources.python), {**_UNKNOWN, "packages": {}})
        others = {COMMAND: sys.executable, **sources.others}
        others = {name: python for name, python in others.items() if python != sources.python}
        return {
            "python": mine["python"],
            "executable": sources.python,
            "platform": platform.platform(),
            "os": system_name(),
            "packages": mine["packages"],
            "interpreter_of": {name: self._other(name, python) for name, python in others.items()},
            "variables": self._noted("variables", lambda: variables(sources.env), {}),
            **{key: mine.get(key) for key in _OF_MACHINE},
        }

    def _other(self, name: str, python: str) -> dict[str, Any]:
        told = self._noted(f"packages of {name}", lambda: installed(python), {**_UNKNOWN, "packages": {}})
        return {"python": told["python"], "executable": python, "packages": told["packages"]}

    def _machine(self) -> dict[str, Any]:
        return machine_facts(self._sources.gpus, self.notes)

    def _code(self) -> dict[str, Any] | None:
        return code_facts(self._sources.patch_file, self.notes, skip=self._sources.skip)
