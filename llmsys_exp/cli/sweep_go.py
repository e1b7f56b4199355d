"""Run what is left of a sweep: `llmsys sweep resume`, and what `run` and `retry` share with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from llmsys_exp.cli.options import Options, take_values, unknown_argument
from llmsys_exp.cli.sweep_follow import newest_sweep, runner_of, status
from llmsys_exp.cli.sweep_ray import check_address, check_cluster, check_ray, run_on_ray
from llmsys_exp.cli.sweep_results import refresh
from llmsys_exp.cli.sweep_slurm import check_slurm, submit_left
from llmsys_exp.errors import EXIT_USER, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.runs.lock import StillHeld, locked
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, open_sweep
from llmsys_exp.sweeps.ledger.ledger import PointState
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.ledger.settle import AGAIN, reopen
from llmsys_exp.sweeps.running.lease import leases_here
from llmsys_exp.sweeps.running.runner import Runner, RunOptions, Supply
from llmsys_exp.sweeps.running.size import JobSizes, check_room
from llmsys_exp.sweeps.running.start import slots_needed
from llmsys_exp.sweeps.slurm.array import check_queue

_ELSEWHERE = "KEY=VALUE,... or off"
VALUES = {"--jobs": "N", "--timeout": "SECONDS", "--slurm": _ELSEWHERE, "--ray": _ELSEWHERE}
_START_S = 30.0
SWITCHES = ("--fail-fast", "--pack", "--detach")


def resume(rest: list[str], options: Options) -> int:
    """Run what is left of a sweep, or what a search is to have more."""
    values, rest = take_values(rest, {"--trials": "N"})
    paths, sweep, how, detach = opened(rest, "resume")
    if "--trials" in values:
        _extend(paths, sweep, number_of("--trials", values["--trials"], int))
    if runner_of(paths) is None:
        reopen(sweep.ledger(paths), AGAIN)
    return go(paths, sweep, how, options, detach=detach)


def go(
    paths: SweepPaths, sweep: Sweep, how: RunOptions, options: Options, *, detach: bool, new: bool = False
) -> int:
    """Run what is left, here or with `detach` in a process that outlives this terminal.

    Of a `new` sweep `check_here` was asked before its folder was made.
    """
    console = console_of(options)
    busy = runner_of(paths)
    if busy is not None:
        return _tell_busy(paths, busy, console)
    supply = None if sweep.search is None else _supply(sweep, how, console)
    if how.slurm is not None:
        return submit_left(paths, sweep, how, options)
    if not new:
        check_here(sweep, how, sweep.ledger(paths).states())
    if detach:
        if how.ray is not None:
            check_cluster(paths, sweep, how)
        return _detach(paths, how, options)
    console.line(f"Sweep folder: {paths.folder}")
    try:
        with locked(paths.lock):
            try:
                if how.ray is None:
                    _run_here(paths, sweep, how, console, supply)
                else:
                    run_on_ray(paths, sweep, how, console)
            finally:
                refresh(paths, sweep, console)
    except StillHeld:  # another one was faster
        return _tell_busy(paths, runner_of(paths), console)
    except KeyboardInterrupt:  # it says how to go on
        console.line()
        status([str(paths.folder)], options)
        raise
    console.line()
    return status([str(paths.folder)], options)


def _tell_busy(paths: SweepPaths, busy: int | None, console: Console) -> int:
    who = "Another process" if busy is None else f"Process {busy}"
    console.line(f"{who} runs this sweep already and takes up what is planned: {paths.folder}")
    return 0


def check_here(sweep: Sweep, how: RunOptions, states: dict[int, PointState]) -> None:
    """Refuse points that are left and for which this machine is too small, where it is to run them."""
    if how.slurm is None and how.ray is None:
        check_room(leases_here(), JobSizes(sweep).left(states), sweep.verb)


def check_answers(how: RunOptions) -> None:
    """Refuse a cluster that does not answer, as far as that is known without being part of it."""
    if how.slurm is not None:
        check_queue()
    if how.ray is not None:
        check_address(how.ray)


def _extend(paths: SweepPaths, sweep: Sweep, trials: int) -> None:
    """Ask for further points of a search; a runner that is at work takes them up, too."""
    if sweep.search is None:
        raise UserError("--trials is of a search", where=str(paths.folder), do="Leave it out")
    if trials <= sweep.expected:
        raise UserError(f"The search has {sweep.expected} trials", where=f"--trials {trials}", do="Give more")
    ledger = sweep.ledger(paths)
    assert isinstance(ledger, SearchLedger)
    ledger.extend(trials)


def _supply(sweep: Sweep, how: RunOptions, console: Console) -> Supply:
    """Return what adds points to a search, where it can be run so."""
    # what composes settings is slow to import, and other sweeps do without
    from llmsys_exp.cli.sweep_search import refuse_elsewhere
    from llmsys_exp.sweeps.search.supply import Supply

    refuse_elsewhere(how)
    return Supply(sweep, console.line)


def _run_here(
    paths: SweepPaths, sweep: Sweep, how: RunOptions, console: Console, supply: Supply | None
) -> None:
    leases = leases_here()
    needs = slots_needed(leases, how.jobs)
    runner = Runner(paths, sweep, how, leases=leases, needs=needs, say=console.line)
    runner.supply = supply
    runner.run()


def _detach(paths: SweepPaths, how: RunOptions, options: Options) -> int:
    """Start `llmsys sweep resume` in a session of its own."""
    flags = [
        *(["--jobs", str(how.jobs)] if how.jobs else []),
        *(["--timeout", f"{how.timeout_s:g}"] if how.timeout_s else []),
        *(["--fail-fast"] if how.fail_fast else []),
        *(["--pack"] if how.pack else []),
        *("--ray", how.ray or "off"),
    ]
    command = [sys.executable, "-m", "llmsys_exp", "sweep", "resume", str(paths.folder), *flags]
    with disk_errors(paths.log), paths.log.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + _START_S
    # `wait` right after this has to find it at work
    while runner_of(paths) != process.pid and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    if process.poll() in (1, EXIT_USER):
        what = "The process that was to run the sweep has ended"
        raise UserError(what, where=str(paths.folder), do=f"{paths.log} says why")
    runner = runner_of(paths) or process.pid  # another one may have been faster
    if options.json:
        sys.stdout.write(json.dumps({"folder": str(paths.folder), "runner": runner}) + "\n")
    else:
        console = console_of(options)
        console.line(f"Process {runner} runs the sweep in {paths.folder}")
        for word in ("status", "wait", "cancel"):
            console.line(f"  llmsys sweep {word} {quote(str(paths.folder))}")
    return 0


def opened(rest: list[str], command: str) -> tuple[SweepPaths, Sweep, RunOptions, bool]:
    """Read the folder and the flags of a sweep that is there."""
    values, rest = take_values(rest, VALUES)
    switches, rest = take_switches(rest, SWITCHES)
    refuse_flags(rest, [*VALUES, *SWITCHES], command)
    paths, sweep = open_sweep(newest_sweep(rest, command))
    try:
        recorded = RunOptions(**sweep.options)
        if not (isinstance(recorded.jobs, int | None) and isinstance(recorded.timeout_s, int | float | None)):
            raise TypeError("jobs or timeout_s is no number")
        os.chdir(sweep.started_in)
    except OSError as error:
        why, do = f"Relative paths begin at {sweep.started_in}: {error.strerror}", "Make it again"
        raise UserError("The folder that this sweep was started in is gone", why=why, do=do) from error
    except TypeError as error:
        why = "Its options were changed, or a later llmsys wrote them"
        raise UserError(
            "The sweep is not as it was written", where=f"{paths.sweep}: {error}", why=why
        ) from error
    how = options_of_run(recorded, values, switches)
    return paths, sweep, how, "--detach" in switches


def options_of_run(how: RunOptions, values: dict[str, str], switches: Sequence[str]) -> RunOptions:
    """Change how a sweep is run by what the command line says."""
    asked: dict[str, Any] = {}
    if "--jobs" in values:
        asked["jobs"] = number_of("--jobs", values["--jobs"], int)
    if "--timeout" in values:
        asked["timeout_s"] = number_of("--timeout", values["--timeout"], float)
    asked |= {flag[2:].replace("-", "_"): True for flag in ("--fail-fast", "--pack") if flag in switches}
    if "--slurm" in values:
        asked["slurm"] = None if values["--slurm"] == "off" else values["--slurm"]
    if "--ray" in values:
        asked["ray"] = None if values["--ray"] == "off" else values["--ray"]
    return check_ray(check_slurm(replace(how, **asked)))


def number_of(flag: str, text: str, kind: Callable[[str], Any]) -> Any:
    """Read the value of a flag that takes a number above 0."""
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise UserError(f"{flag} {text} is no number above 0", where="llmsys sweep")
    return number


def take_switches(rest: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags without a value that are given, and the other arguments."""
    return [text for text in rest if text in known], [text for text in rest if text not in known]


def refuse_flags(rest: Sequence[str], valid: Sequence[str], command: str) -> None:
    """Refuse what is left and looks like a flag."""
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], [*valid, "--json"], where=f"llmsys sweep {command}")


def console_of(options: Options) -> Console:
    """Return where words go: beside the result where that is JSON."""
    return Console.on(sys.stderr if options.json else sys.stdout)
