"""Runs that end before their time, and what becomes of them: many in one process, as imports cost most.

    life_jobs FOLDER[@STEP][#TRICK] ...

A folder is trained; with `@STEP` it is first trained until an exception after that step, as a kill would end it
but for the process. Tricks: `nan=STEP` spoils a loss, and then a failure ends that run only; `full=STEP` lets
the disk refuse larger files after that step; `torn=STEP` cuts a file of that checkpoint before the run goes on;
`weights=STEP` writes the weights of that checkpoint afterwards.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.checkpoints import folder_name
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers import events
from llmsys_exp.workers.consolidate import consolidate
from llmsys_exp.workers.exits import run_and_exit
from llmsys_exp.workers.job import load_job
from llmsys_exp.workers.ranks import join, quieten, seed_everything
from llmsys_exp.workers.training.checkpoints import Checkpoints
from llmsys_exp.workers.training.memory import MemoryMeter
from llmsys_exp.workers.training.run import TrainingRun

SMALL_FILE_BYTES = 100_000


class Crash(BaseException):
    """Takes the place of a kill."""


def train(folder: Path, *, crash_after: int | None = None, trick: str = "") -> None:
    job = load_job(folder)
    ranks = join(job)
    quieten()
    seed_everything(job.config.seed)
    run = TrainingRun(job, ranks)
    kind, _, step = trick.partition("=")
    if kind == "nan":
        spoil_loss(run, int(step))
    after_step(run, crash_after=crash_after, full_after=int(step) if kind == "full" else None)
    try:
        run.run()
    except Crash:
        pass
    except UserError as error:
        if kind != "nan":
            raise
        events.note(f"{folder.name}: {error}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def after_step(run: Any, *, crash_after: int | None, full_after: int | None) -> None:
    enter = run._enter

    def entered(report: Any, metrics: Any) -> None:
        enter(report, metrics)
        if report.step == crash_after:
            raise Crash
        if report.step == full_after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE_BYTES, resource.RLIM_INFINITY))
        elif full_after is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    run._enter = entered


def spoil_loss(run: Any, step: int) -> None:
    plain, calls = run._task.loss, iter(range(10**6))
    first = (step - 1) * run._order.grad_accum

    def loss(*arguments: Any) -> Any:
        return plain(*arguments) * (float("nan") if next(calls) == first else 1.0)

    run._task.loss = loss


def tear(folder: Path, step: int) -> None:
    """Let a shard lose its end, on rank 0; the others wait for it when they look for checkpoints."""
    if os.environ.get("RANK", "0") == "0":
        shard = max((RunPaths(folder).checkpoints / folder_name(step)).rglob("*optim_states.pt"))
        shard.write_bytes(shard.read_bytes()[:-100])


def save_slowly(seconds: float) -> None:
    """Leave time to kill the process between the last file and the folder's name."""
    publish = Checkpoints._publish

    def slowly(*arguments: Any) -> None:
        time.sleep(seconds)
        publish(*arguments)

    Checkpoints._publish = slowly


def main() -> None:
    # what memory is held is not asked here, and counting tensors takes longer than a tiny run
    MemoryMeter.record = lambda meter, phase: None
    save_slowly(float(os.environ.get("SLOW_SAVE_S", "0")))
    for argument in sys.argv[1:]:
        rest, _, trick = argument.partition("#")
        folder, _, step = rest.partition("@")
        if step:
            train(Path(folder), crash_after=int(step))
        if trick.startswith("torn"):
            tear(Path(folder), int(trick.partition("=")[2]))
        train(Path(folder), trick=trick)
        if trick.startswith("weights"):
            consolidate(load_job(Path(folder)), int(trick.partition("=")[2]))


if __name__ == "__main__":
    run_and_exit(main)
