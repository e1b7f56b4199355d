"""The process of one job: `python -m llmsys_exp.sweeps.launcher.job JOB RESULT OWNER`, three descriptors.

A fresh interpreter imports the program as `multiprocessing` does where it spawns, and runs the job as Hydra's
basic launcher does. What passes between it and its owner goes through files without names that nobody else
can open; nothing that lies on a disk is unpickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import process, spawn
from typing import Any, BinaryIO


@dataclass(frozen=True)
class Task:
    """Where a program's function is found: by name, and how many decorators below it."""

    module: str
    name: str
    depth: int

    def find(self) -> Callable[..., Any]:
        """Return the function."""
        found: Any = import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        for _ in range(self.depth):
            found = found.__wrapped__
        return found


@dataclass(frozen=True)
class Work:
    """One job, as its owner hands it over."""

    task: Task
    program: str
    """Hydra's name of it."""
    version_base: str | None
    context: Any
    config: Any


def main(descriptors: list[int]) -> int:
    """Run the job that a descriptor holds and write what it returned."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    job, result, owner = descriptors
    with open(job, "rb") as stream, open(result, "wb") as answer:
        try:
            returned = _run(stream, owner)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        answer.write(_packed(returned))
    return 0


def _run(stream: BinaryIO, owner: int) -> Any:
    from hydra import version
    from hydra.core.utils import JobRuntime, run_job, setup_globals

    sweep, number = pickle.load(stream)
    threading.Thread(target=_end_with, args=(owner, sweep, number), daemon=True).start()
    _import_program(pickle.load(stream))
    work: Work = pickle.load(stream)
    setup_globals()
    version.setbase(work.version_base)
    JobRuntime.instance().set("name", work.program)
    return run_job(
        hydra_context=work.context,
        task_function=work.task.find(),
        config=work.config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _import_program(prepared: dict[str, Any]) -> None:
    """Import what the owner runs, as a process that `multiprocessing` has spawned does."""
    current: Any = process.current_process()
    current._inheriting = True  # a program that launches as it is imported is refused
    try:
        spawn.prepare(prepared)
    except SystemExit:
        sys.stderr.write(
            "The program ended when it was imported: "
            'call its main function under `if __name__ == "__main__":`\n'
        )
        raise
    finally:
        del current._inheriting


def _packed(returned: Any) -> bytes:
    """Return what a job returned as the owner can read it."""
    from multiprocessing.pool import ExceptionWithTraceback

    from hydra.core.utils import JobStatus

    value = returned._return_value
    failed = returned.status is JobStatus.FAILED
    if failed:
        returned._return_value = ExceptionWithTraceback(value, value.__traceback__)
    try:
        packed = pickle.dumps(returned)
        pickle.loads(packed)  # not every error that can be packed can be unpacked
    except Exception as error:
        import logging

        what = f"{type(value).__name__} cannot be handed back ({error})"
        if not failed:
            logging.getLogger(__name__).warning("The returned %s: None is returned in its place", what)
        told = (
            ExceptionWithTraceback(RuntimeError(f"{value}; its {what}"), value.__traceback__)
            if failed
            else None
        )
        returned._return_value = told
        packed = pickle.dumps(returned)
    return packed


def _end_with(owner: int, sweep: str, number: int) -> None:
    """End the job and all it has started when its owner is gone."""
    with suppress(OSError):
        os.read(owner, 1)  # nothing is ever written: it returns at the end of who holds the other side
    from llmsys_exp.sweeps.running.processes import end_point

    end_point(sweep, number)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main([int(text) for text in sys.argv[1:]]))
