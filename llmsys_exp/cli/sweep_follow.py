"""The commands of `llmsys sweep` that look at a sweep or stop it: status, wait, cancel, list."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.options import Options, take_values, unknown_argument
from llmsys_exp.cli.sweep_who import tasks_of, tasks_to_dict, who_runs
from llmsys_exp.errors import EXIT_OK, EXIT_STOPPED, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.sweep_state import counts, exit_code, show_sweep, state_of_point, sweep_to_dict
from llmsys_exp.runs.status import is_held
from llmsys_exp.sweeps.folder import FILE, Sweep, SweepPaths, open_sweep
from llmsys_exp.sweeps.ledger.ledger import RUNNING, Ledger
from llmsys_exp.sweeps.ray.files import ask_driver, is_driver
from llmsys_exp.sweeps.running.processes import ask
from llmsys_exp.sweeps.slurm.array import cancel_tasks, settle_tasks, task_of, uses_slurm

if TYPE_CHECKING:
    from llmsys_exp.sweeps.search.best import Standing

OUTPUTS = Path("outputs")
POLL_S = 0.2
SLURM_POLL_S = 2.0
"""Its controller serves everybody."""


def status(rest: Sequence[str], options: Options) -> int:
    """Show where a sweep stands; the exit code is that of the sweep."""
    everything, rest = "--all" in rest, [text for text in rest if text != "--all"]
    _no_flags(rest, ["--all"], "status")
    paths, sweep = open_sweep(newest_sweep(rest, "status"))
    tasks = tasks_of(paths, sweep)
    ledger, runner = sweep.ledger(paths), runner_of(paths)
    states = ledger.states()
    search, matters = _search(sweep, ledger)
    left = search is not None and search.is_left
    if options.json:
        content = {**sweep_to_dict(paths, sweep, states, runner=runner), "tasks": tasks_to_dict(tasks)}
        if search is not None:
            content["search"] = {**search.to_dict(), "importances": matters}
        sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")
    else:
        console = Console.on(sys.stdout)
        by = who_runs(paths, runner, tasks, states)
        goes_on = left and search is not None and not search.ended
        show_sweep(console, paths, sweep, states, by=by, everything=everything, left=goes_on)
        if search is not None:
            from llmsys_exp.report.search_text import show_search

            show_search(console, sweep, search, matters)
    return exit_code(states, left=left)


def _search(sweep: Sweep, ledger: Ledger) -> tuple[Standing | None, dict[str, float]]:
    """Return where a search stands and what matters in it."""
    if sweep.search is None:
        return None, {}
    # what reads settings takes a while, and other sweeps do without
    from llmsys_exp.cli.sweep_search import importances_of
    from llmsys_exp.sweeps.search.best import standing

    found = standing(sweep, ledger)
    return found, importances_of(found, ledger)


def wait(rest: Sequence[str], options: Options) -> int:
    """Wait until nothing of a sweep runs any more, and show where it stands then."""
    values, rest = take_values(rest, {"--timeout": "SECONDS"})
    _no_flags(rest, ["--timeout"], "wait")
    limit = values.get("--timeout", "inf")
    try:
        seconds = float(limit)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UserError(f"--timeout {limit} is no number of seconds", where="llmsys sweep wait")
    folder, until = newest_sweep(rest, "wait"), time.monotonic() + seconds
    if not _wait_until(SweepPaths(folder.absolute()), until):
        status([str(folder)], options)
        return EXIT_STOPPED
    return status([str(folder)], options)


def cancel(rest: Sequence[str], options: Options) -> int:
    """Ask the runner to stop, or the jobs where there is none, and wait until they have."""
    _no_flags(rest, [], "cancel")
    folder = newest_sweep(rest, "cancel")
    paths, sweep = open_sweep(folder)
    runner = runner_of(paths)
    if runner is not None and is_driver(paths, runner):
        ask_driver(paths)  # it may be on another machine
    elif runner is not None:
        with suppress(ProcessLookupError):
            os.kill(runner, signal.SIGTERM)
    for now in sweep.ledger(paths).states().values():
        # Slurm tells its own, and a second word would end them before they have saved
        if state_of_point(now) == RUNNING and runner is None and task_of(now) is None:
            ask(now.fields)
    if uses_slurm(paths):
        cancel_tasks(paths)
    _wait_until(paths, float("inf"))
    status([str(folder)], options)
    return EXIT_OK


def list_sweeps(rest: Sequence[str], options: Options) -> int:
    """List the sweeps below a folder, oldest first."""
    _no_flags(rest, [], "list")
    outputs = Path(rest[0]) if rest else OUTPUTS
    if rest and not outputs.is_dir():
        raise UserError("There is no such folder", where=str(outputs))
    rows: list[dict[str, Any]] = []
    for folder in _sweeps(outputs):
        try:
            paths, sweep = open_sweep(folder)
            found = counts(sweep.ledger(paths).states())
        except UserError as error:  # the others are to be seen
            rows.append({"name": folder.parent.name, "error": str(error), "folder": str(folder)})
            continue
        runner = runner_of(paths)
        rows.append({"name": sweep.name, "counts": found, "runner": runner, "folder": str(folder)})
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return EXIT_OK
    console = Console.on(sys.stdout)
    if not rows:
        console.line(f"No sweeps in {outputs}")
        return EXIT_OK
    cells = [
        (
            str(row["name"]),
            _points_told(row),
            "running" if row.get("runner") else "-",
            str(row["folder"]),
        )
        for row in rows
    ]
    console.table(cells, header=("name", "points", "now", "folder"))
    return EXIT_OK


def _points_told(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return "cannot be read: `llmsys sweep status FOLDER` says why"
    return ", ".join(f"{count} {state}" for state, count in row["counts"].items())


def runner_of(paths: SweepPaths) -> int | None:
    """Return the process that runs a sweep, or None."""
    if not is_held(paths.lock):
        return None
    try:
        return int(paths.lock.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def newest_sweep(rest: Sequence[str], command: str) -> Path:
    """Return the folder that is named, or that of the newest sweep below `outputs`."""
    if len(rest) > 1:
        raise unknown_argument(rest[1], ["one FOLDER"], where=f"llmsys sweep {command}")
    if rest:
        return Path(rest[0])
    found = _sweeps(OUTPUTS)
    if not found:
        raise UserError(
            "There is no sweep here",
            where=str(OUTPUTS.absolute()),
            do=f"Name its folder: llmsys sweep {command} FOLDER",
        )
    return found[-1]


def _sweeps(outputs: Path) -> list[Path]:
    return sorted((file.parent for file in outputs.glob(f"*/*/{FILE}")), key=lambda folder: folder.name)


def _wait_until(paths: SweepPaths, until: float) -> bool:
    """Wait until neither runner nor jobs are left; return whether that came in time."""
    paths, sweep = open_sweep(paths.folder)
    ledger = sweep.ledger(paths)
    while _is_busy(paths, sweep, ledger):
        if time.monotonic() > until:
            return False
        time.sleep(SLURM_POLL_S if uses_slurm(paths) else POLL_S)
    return True


def _is_busy(paths: SweepPaths, sweep: Sweep, ledger: Ledger) -> bool:
    if uses_slurm(paths) and settle_tasks(paths, sweep):
        return True
    return is_held(paths.lock) or any(state_of_point(now) == RUNNING for now in ledger.states().values())


def _no_flags(rest: Sequence[str], valid: Sequence[str], command: str) -> None:
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], [*valid, "--json"], where=f"llmsys sweep {command}")
