"""`llmsys sweep ... --slurm`: hand what is left of a sweep to Slurm and return."""

from __future__ import annotations

import json
import sys

from llmsys_exp.cli.options import Options
from llmsys_exp.errors import UserError
from llmsys_exp.report.console import Console
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.running.runner import RunOptions
from llmsys_exp.sweeps.slurm.array import parse_options, submit


def check_slurm(how: RunOptions) -> RunOptions:
    """Return the options, where Slurm can do what they say.

    Raises:
        UserError: when it cannot.
    """
    if how.slurm is not None:
        parse_options(how.slurm)
        for flag, given in (("--fail-fast", how.fail_fast), ("--pack", how.pack)):
            if given:
                raise UserError(f"{flag} does not go with --slurm", why="Slurm runs each point by itself")
    return how


def submit_left(paths: SweepPaths, sweep: Sweep, how: RunOptions, options: Options) -> int:
    """Submit the points that are left and say which tasks they are."""
    asked = parse_options(how.slurm or "")
    if how.jobs is not None:
        asked.setdefault("array_parallelism", how.jobs)
    tasks = submit(paths, sweep, asked, timeout_s=how.timeout_s)
    if options.json:
        sys.stdout.write(json.dumps({"folder": str(paths.folder), "tasks": tasks}) + "\n")
        return 0
    console = Console.on(sys.stdout)
    if not tasks:
        console.line("Slurm has all that is left already, or nothing is left")
    for number, task in tasks.items():
        console.line(f"point {number} is task {task} of Slurm")
    for word in ("status", "wait", "cancel"):
        console.line(f"  llmsys sweep {word} {paths.folder}")
    return 0
