"""`llmsys sweep run`: find the points, plan each, write down what was asked, and run them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from llmsys_exp.cli.options import Options, take_values
from llmsys_exp.cli.sweep_follow import runner_of
from llmsys_exp.cli.sweep_go import (
    SWITCHES,
    VALUES,
    check_answers,
    check_here,
    console_of,
    go,
    number_of,
    options_of_run,
    refuse_flags,
    take_switches,
)
from llmsys_exp.cli.sweep_search import new_search
from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.folders import shipped_path
from llmsys_exp.errors import UserError
from llmsys_exp.report.console import Console
from llmsys_exp.runs.folder import check_name
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.gate.gate import gate_points, reason
from llmsys_exp.sweeps.ledger.ledger import PLANNED, SKIPPED, PointState
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.point import Points
from llmsys_exp.sweeps.points.sweep_file import read_sweep_file
from llmsys_exp.sweeps.ray.files import driver_of
from llmsys_exp.sweeps.running.runner import RunOptions
from llmsys_exp.sweeps.slurm.array import uses_slurm

_FILL = "--fill"


def run(rest: list[str], options: Options) -> int:
    """Make the folder of a new sweep and run it."""
    values, rest = take_values(rest, {**VALUES, "--verb": "train", "--trials": "N"})
    switches, rest = take_switches(rest, (*SWITCHES, _FILL))
    overrides = [text for text in rest if text not in ("-m", "--multirun")]
    refuse_flags(overrides, [*VALUES, "--verb", "--trials", *SWITCHES, _FILL], "run")
    file, overrides = _split_file(overrides)
    verb = values.get("--verb", "train")
    how = options_of_run(RunOptions(), values, switches)
    check_answers(how)
    read = None if file is None else read_sweep_file(file)
    if read is not None and read.search is not None:
        if _FILL in switches:
            raise UserError("--fill does not go with a search", why="What does not fit is not suggested")
        if "--trials" in values:
            search = replace(read.search, trials=number_of("--trials", values["--trials"], int))
            read = replace(read, search=search)
        paths, sweep = new_search(read, overrides, verb, how, console_of(options))
    elif "--trials" in values:
        raise UserError("--trials is of a search", do="Leave it out, or give a file with search")
    else:
        found = points_of(overrides, (), file, verb)
        paths, sweep = _new_sweep(found, verb, how, console_of(options), fill=_FILL in switches)
    try:
        return go(paths, sweep, how, options, detach="--detach" in switches, new=True)
    except UserError:
        _discard_unstarted(paths, sweep, how)
        raise


def _discard_unstarted(paths: SweepPaths, sweep: Sweep, how: RunOptions) -> None:
    """Take away a folder that a cluster refused as a whole, lest it be the newest sweep for no reason."""
    handed = uses_slurm(paths) or driver_of(paths) is not None or paths.log.exists()
    if (how.slurm is None and how.ray is None) or handed or runner_of(paths) is not None:
        return
    if all(
        now.state in (PLANNED, SKIPPED) and not now.attempt for now in sweep.ledger(paths).states().values()
    ):
        shutil.rmtree(paths.folder, ignore_errors=True)
        with suppress(OSError):  # other runs and sweeps lie there
            paths.folder.parent.rmdir()


def _new_sweep(
    found: Points, verb: str, how: RunOptions, console: Console, *, fill: bool
) -> tuple[SweepPaths, Sweep]:
    """Plan the points and make the folder; nothing is made where anything is wrong."""
    console.line(f"Planning {_counted(len(found.points))} ...")
    gated = gate_points(found, verb=verb, fill=fill, tell=console.line)
    points = [one.point for one in gated]
    config = compose_config([*found.base, *points[0].overrides])
    check_name(config.name)
    left = {one.point.number: PointState(one.point.number) for one in gated if one.verdict != SKIPPED}
    check_here(Sweep("", config.name, verb, found.base, points, ""), how, left)
    outputs = Path(config.paths.outputs).expanduser().absolute()
    forecasts = [
        {
            "verdict": one.verdict,
            "reason": reason(one) if one.verdict == SKIPPED else None,
            "figures": one.figures,
            "fix": one.fix,
            "filled_from": one.filled_from,
        }
        for one in gated
    ]
    paths, sweep = create_sweep(
        outputs, config.name, verb, base=found.base, points=points, options=asdict(how), forecasts=forecasts
    )
    skipped = sum(one.verdict == SKIPPED for one in gated)
    same = "has" if found.dropped == 1 else "have"
    said = f", {found.dropped} more {same} the settings of one of them" if found.dropped else ""
    changed = sum(one.filled_from is not None for one in gated)
    filled = f", {changed} in the place of others that do not fit" if changed else ""
    console.line(f"{_counted(len(points))}{said}; {skipped} skipped{filled}")
    return paths, sweep


def _counted(points: int) -> str:
    return f"{points:,} point{'' if points == 1 else 's'}"


def _split_file(rest: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Take the sweep file out: the one argument that is no override."""
    files = [text for text in rest if "=" not in text and not text.startswith("~")]
    if len(files) > 1:
        raise UserError(
            f"{files[1]} is a second sweep file", where=files[0], do="Give one file and overrides"
        )
    if files and not shipped_path(files[0]).is_file():
        raise UserError(
            f"{files[0]} is neither a sweep file nor KEY=VALUE", do="Name a YAML file, or write KEY=A,B"
        )
    return (shipped_path(files[0]) if files else None), [text for text in rest if text not in files]
