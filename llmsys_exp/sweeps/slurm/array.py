"""Points of a sweep as an array of Slurm's, through submitit.

A task claims its point in the ledger as any other job does: one that is submitted twice runs once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, RUNNING, PointState
from llmsys_exp.sweeps.ledger.settle import end_gone
from llmsys_exp.sweeps.slurm.task import PREFIX, PointTask

MOST_TASKS = 1000
"""Tasks of one array; Slurm's own limit is 1,001 unless a site has set another."""
MOST_REQUEUES = 1000
"""A run that saves each time makes progress, however often its time is up."""
OURS = ("job_name", "setup", "teardown", "srun_args", "use_srun", "additional_parameters", "num_gpus")
"""Parameters of submitit's that are not for the user."""


@dataclass(frozen=True)
class Task:
    """A task that waits or runs."""

    name: str
    state: str
    """Slurm's word for it: PENDING, RUNNING, COMPLETING ..."""


def parse_options(text: str) -> dict[str, Any]:
    """Read `time=120,gpus_per_node=4,partition=gpu`; `time` is in minutes.

    Raises:
        UserError: for an option that is unknown or no pair.
    """
    _require_slurm()
    from submitit import SlurmExecutor

    known = sorted(SlurmExecutor._valid_parameters() - {*OURS})
    options: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if key not in known:
            raise unknown_name("option of Slurm", key, known, where=f"--slurm {text}", limit=len(known))
        if not equals or not value:
            raise UserError(f"{key} has no value", where=f"--slurm {text}", do=f"Write {key}=VALUE")
        options[key] = int(value) if value.isdigit() else value
    if not isinstance(options.get("time"), int):
        raise UserError(
            "Slurm needs to know how long a point may take at a time",
            where=f"--slurm {text}",
            do="Give minutes: --slurm time=120,gpus_per_node=1; what takes longer goes on from a checkpoint",
        )
    return options


def submit(
    paths: SweepPaths, sweep: Sweep, options: Mapping[str, Any], *, timeout_s: float | None = None
) -> dict[int, str]:
    """Submit what is left of a sweep and does not wait in the queue yet; return the tasks by point.

    Raises:
        UserError: where Slurm is missing or refuses the job.
    """
    _require_slurm()
    ledger = sweep.ledger(paths)
    waiting = settle_tasks(paths, sweep)
    left = [
        number
        for number, now in ledger.states().items()
        if now.state in (PLANNED, LOST) and number not in waiting
    ]
    submitted: dict[int, str] = {}
    for at in range(0, len(left), MOST_TASKS):
        part = left[at : at + MOST_TASKS]
        tasks = [PointTask(str(paths.folder), number, timeout_s) for number in part]
        named = dict(zip(part, _submit_array(paths, sweep, tasks, options), strict=True))
        _remember(paths, named)
        submitted |= named
    return submitted


def check_queue() -> None:
    """Ask Slurm for the queue.

    Raises:
        UserError: when it does not answer.
    """
    _queue()


def settle_tasks(paths: SweepPaths, sweep: Sweep) -> dict[int, Task]:
    """Call points lost whose tasks are gone; return the tasks that wait or run, by point."""
    ledger, alive = sweep.ledger(paths), _queue()
    for number, now in ledger.states().items():
        task = task_of(now)
        if now.state == RUNNING and task is not None and task not in alive:
            end_gone(ledger, number)
    return {number: Task(task, alive[task]) for number, task in _remembered(paths).items() if task in alive}


def cancel_tasks(paths: SweepPaths) -> list[str]:
    """Take the tasks of a sweep out of the queue; those that run are told to stop. Return their names."""
    alive = _queue()
    tasks = [task for task in _remembered(paths).values() if task in alive]
    if tasks:
        _ask_slurm(["scancel", *tasks])
    return tasks


def task_of(now: PointState) -> str | None:
    """Return the task that the newest attempt at a point was; None where Slurm did not start it."""
    lease = next(iter(now.fields.get("lease") or ()), "")
    return lease.removeprefix(PREFIX) if lease.startswith(PREFIX) else None


def uses_slurm(paths: SweepPaths) -> bool:
    """Whether points of a sweep were ever submitted."""
    return _file(paths).exists()


def _submit_array(
    paths: SweepPaths, sweep: Sweep, tasks: Sequence[PointTask], options: Mapping[str, Any]
) -> list[str]:
    import submitit

    executor = submitit.SlurmExecutor(paths.folder / "slurm", max_num_timeout=MOST_REQUEUES)
    executor.update_parameters(
        **{"stderr_to_stdout": True, **options},
        job_name=f"llmsys-{sweep.name}",
        additional_parameters={"requeue": True},
        # one process a point: where it spans several nodes, it starts the agents of all of them itself
        srun_args=["--nodes=1", "--ntasks=1"],
    )
    # what Slurm tells the job that we may be in would shape the new one; SLURM_CONF says where Slurm is
    names = [key for key in os.environ if key.startswith("SLURM_") and key != "SLURM_CONF"]
    inherited = {key: os.environ.pop(key) for key in names}
    try:
        with disk_errors(paths.folder), executor.batch():
            jobs = [executor.submit(task) for task in tasks]
    except submitit.core.utils.FailedJobError as error:
        raise UserError("Slurm did not take the job", where="--slurm", why=str(error).strip()) from None
    finally:
        os.environ |= inherited
    return [str(job.job_id) for job in jobs]


def _file(paths: SweepPaths) -> Any:
    return paths.folder / "slurm" / "tasks.jsonl"


def _remember(paths: SweepPaths, tasks: Mapping[int, str]) -> None:
    lines = "".join(json.dumps({"point": number, "task": task}) + "\n" for number, task in tasks.items())
    with disk_errors(_file(paths)), _file(paths).open("a", encoding="utf-8") as stream:
        stream.write(lines)


def _remembered(paths: SweepPaths) -> dict[int, str]:
    """Return the newest task of each point."""
    if not uses_slurm(paths):
        return {}
    lines = _file(paths).read_text(encoding="utf-8").splitlines()
    return {entry["point"]: entry["task"] for entry in map(json.loads, lines)}


def _queue() -> dict[str, str]:
    """Return the state of each of our tasks that wait or run, by its name."""
    lines = _ask_slurm(["squeue", "--me", "--array", "--noheader", "--format=%i %T"]).splitlines()
    return {name: state for name, _, state in (line.strip().partition(" ") for line in lines)}


def _ask_slurm(command: Sequence[str]) -> str:
    _require_slurm()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise UserError("Slurm does not answer", where=command[0], why=done.stderr.strip())
    return done.stdout


def _require_slurm() -> None:
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError(
            "Slurm is not installed here",
            where="--slurm",
            why="There is no sbatch on PATH",
            do="Go to a machine that can submit jobs, or leave --slurm out",
        )
    if find_spec("submitit") is None:
        raise UserError(
            "The package submitit is not installed",
            where="--slurm",
            do="Run: pip install 'llmsys-exp[slurm]'",
        )
