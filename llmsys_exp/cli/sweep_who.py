"""Who runs a sweep now: a process of this machine, tasks of Slurm, or a driver of Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.report.sweep_state import state_of_point
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, RUNNING, PointState
from llmsys_exp.sweeps.ray.files import driver_of, is_driver
from llmsys_exp.sweeps.slurm.array import Task, settle_tasks, uses_slurm

MOST_NAMED = 8


def tasks_of(paths: SweepPaths, sweep: Sweep) -> dict[int, Task] | None:
    """Return tasks of Slurm that wait or run, by point; None where it cannot be asked, as elsewhere."""
    if not uses_slurm(paths):
        return {}
    try:
        return settle_tasks(paths, sweep)
    except UserError:
        return None


def who_runs(
    paths: SweepPaths, runner: int | None, tasks: Mapping[int, Task] | None, states: Mapping[int, PointState]
) -> list[str]:
    """Say it in lines; none where nobody does."""
    said: list[str] = []
    driver = driver_of(paths)
    if runner is not None and driver is not None and is_driver(paths, runner):
        found = Counter(map(state_of_point, states.values()))
        said.append(
            f"process {runner} on {driver.get('host')} runs it on Ray at {driver.get('address')}: "
            f"{found[RUNNING]} run, {found[PLANNED] + found[LOST]} wait"
        )
    elif runner is not None:
        said.append(f"process {runner} runs it")
    if tasks is None:
        said.append("Slurm was given its points, and cannot be asked on this machine how they are")
    elif tasks:
        said.append(f"Slurm runs it: {_told(tasks)}")
    return said


def tasks_to_dict(tasks: Mapping[int, Task] | None) -> list[dict[str, Any]] | None:
    """Return tasks as plain values."""
    if tasks is None:
        return None
    return [{"point": number, "task": task.name, "state": task.state} for number, task in tasks.items()]


def _told(tasks: Mapping[int, Task]) -> str:
    found = Counter(task.state.lower() for task in tasks.values())
    counted = ", ".join(f"{count} {state}" for state, count in found.items())
    named = [f"point {number} is task {task.name}" for number, task in tasks.items()]
    more = [] if len(named) <= MOST_NAMED else [f"and {len(named) - MOST_NAMED} more"]
    return f"{counted} ({', '.join([*named[:MOST_NAMED], *more])})"
