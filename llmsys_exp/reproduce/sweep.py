"""The points of a sweep again, through the machinery of sweeps, and each compared with what it had logged.

The new sweep's points are the recorded runs: a process with a lease of its own does what
`llmsys reproduce RUN` does, so that the ledger and going on after a kill are those of every sweep.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.errors import EXIT_JOB_FAILED, EXIT_NOT_REPRODUCED, EXIT_OK, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce import shown
from llmsys_exp.reproduce.find import find_run
from llmsys_exp.reproduce.logged import read_logged
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep, open_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, PointState
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running.lease import leases_here
from llmsys_exp.sweeps.running.runner import Runner, RunOptions
from llmsys_exp.sweeps.running.start import slots_needed

if TYPE_CHECKING:
    from llmsys_exp.cli.reproduce import Asked

VERB = "reproduce"
REPRODUCED, DIFFERENT, NOT_RUN = "reproduced", "different", "not run"


def reproduce_sweep(asked: Asked, file: Path) -> int:
    """Do the points of a sweep again, or only check them, and return the worst exit code.

    Raises:
        UserError: for points that there are not, or that had not come to their end.
    """
    from llmsys_exp.reproduce.command import console_of, outputs_for

    if asked.environment is not None:
        raise UserError(
            "--environment goes with one run", where=str(file.parent), do="Name a run of the sweep"
        )
    paths, sweep = open_sweep(file.parent)
    runs = _runs(paths, sweep, asked.points)
    console = console_of(asked)
    if asked.check:
        return _check(asked, runs, console)
    first = read_logged(find_run(str(next(iter(runs.values()))), Path()))
    new, again = _new_sweep(asked, sweep, runs, outputs_for(asked, first))
    console.line(f"Sweep folder: {new.folder}")
    leases = leases_here()
    needs = slots_needed(leases, None)
    with locked(new.lock):
        Runner(new, again, RunOptions(), leases=leases, needs=needs, say=console.line).run()
    rows = [_outcome(state, number) for number, state in zip(runs, _states(new, again), strict=True)]
    _show(console, rows, new)
    if asked.options.json:
        sys.stdout.write(
            json.dumps({"folder": str(new.folder), "points": rows}, indent=2, default=str) + "\n"
        )
    return _exit_code(rows)


def gpus_of(run: str) -> int:
    """Return how many GPUs a recorded run takes."""
    hardware = read_logged(find_run(run, Path())).config.get("hardware") or {}
    return 0 if hardware.get("gpu") == "cpu" else int(hardware.get("gpus_per_node", 1))


def _runs(paths: SweepPaths, sweep: Sweep, asked: Sequence[int]) -> dict[int, Path]:
    """Point -> run folder, of those that are done."""
    states = sweep.ledger(paths).states()
    unknown = [number for number in asked if number not in states]
    if unknown:
        raise UserError(f"The sweep has points 1 to {len(states)}", where=f"--point {unknown[0]}")
    wanted = asked or [number for number, now in states.items() if now.state == DONE]
    found = {number: _folder(states[number], paths) for number in wanted}
    missing = [number for number, folder in found.items() if folder is None]
    if missing:
        now = states[missing[0]]
        why = "its run folder is gone" if now.state == DONE else f"it is {now.state}"
        raise UserError(f"Point {missing[0]} cannot be done again: {why}", where=str(paths.folder))
    if not found:
        raise UserError("No point of this sweep is done", where=str(paths.folder), do="llmsys sweep resume")
    return {number: folder for number, folder in found.items() if folder is not None}


def _folder(now: PointState, paths: SweepPaths) -> Path | None:
    """Where a point's run lies: as the ledger says, else beside the sweep, which may have moved."""
    if now.state != DONE or not now.fields.get("folder"):
        return None
    told = Path(str(now.fields["folder"]))
    return next((one for one in (told, paths.folder.parent / told.name) if one.is_dir()), None)


def _check(asked: Asked, runs: Mapping[int, Path], console: Console) -> int:
    from llmsys_exp.reproduce.command import checked_run

    told, matters = [], False
    for number, folder in runs.items():
        logged = read_logged(find_run(str(folder), Path()))
        _, checked = checked_run(asked, logged)
        console.title(f"Point {number}")
        shown.show_drifts(console, logged, checked.drifts)
        told.append({"point": number, "id": logged.id, "drifts": [one.to_dict() for one in checked.drifts]})
        matters |= checked.matters
    if asked.options.json:
        sys.stdout.write(json.dumps(told, indent=2, default=str) + "\n")
    return EXIT_NOT_REPRODUCED if matters else EXIT_OK


def _new_sweep(
    asked: Asked, sweep: Sweep, runs: Mapping[int, Path], outputs: Path
) -> tuple[SweepPaths, Sweep]:
    flags = ["--outputs", str(outputs)]
    flags += [
        flag
        for flag, given in (
            ("--keep-code", asked.keep_code),
            ("--code", asked.code and not asked.keep_code),
            ("--trust", asked.trust),
        )
        if given
    ]
    points = [
        Point(at, hashlib.sha256(str(folder).encode()).hexdigest()[:16], (str(folder),))
        for at, folder in enumerate(runs.values(), start=1)
    ]
    forecast = {"verdict": "runs", "reason": None, "figures": {}, "fix": None, "filled_from": None}
    return create_sweep(
        outputs,
        sweep.name,
        VERB,
        base=[*flags, *asked.overrides],
        points=points,
        options=vars(RunOptions()),
        forecasts=[dict(forecast) for _ in points],
    )


def _states(paths: SweepPaths, sweep: Sweep) -> list[PointState]:
    states = sweep.ledger(paths).states()
    return [states[number] for number in sorted(states)]


def _outcome(now: PointState, number: int) -> dict[str, Any]:
    """Say what came of a point."""
    folder = now.fields.get("folder")
    told = read_json(RunPaths(Path(str(folder))).reproduction) if folder else None
    if not isinstance(told, dict):
        what = now.fields.get("what") or now.state
        return {"point": number, "state": NOT_RUN, "folder": folder, "failed": [], "cause": str(what)}
    failed = [row["name"] for row in told.get("rows", ()) if row.get("passed") is False]
    causes = [one["drift"]["what"] for one in told.get("causes", ())]
    state = REPRODUCED if told.get("reproduced") else DIFFERENT
    cause = causes[0] if causes and failed else ""
    return {"point": number, "state": state, "folder": folder, "failed": failed, "cause": cause}


def _show(console: Console, rows: Sequence[Mapping[str, Any]], paths: SweepPaths) -> None:
    console.title("Points")
    cells = [
        (str(row["point"]), row["state"], ", ".join(row["failed"]) or "-", row["cause"] or "-")
        for row in rows
    ]
    console.table(cells, header=("point", "", "out of bounds", "likely cause"), right=(0,))
    console.line(f"  {paths.folder}")


def _exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    states = {row["state"] for row in rows}
    if NOT_RUN in states:
        return EXIT_JOB_FAILED
    return EXIT_NOT_REPRODUCED if DIFFERENT in states else EXIT_OK
