"""`llmsys export RUN checkpoint=last|best|STEP`: the fp32 weights of a checkpoint as an ordinary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import ModelKind
from llmsys_exp.errors import UserError, closest
from llmsys_exp.jobs.shown import run_titled
from llmsys_exp.launch.environment import worker_env
from llmsys_exp.launch.interpreter import interpreter, require_engine
from llmsys_exp.report.console import Console
from llmsys_exp.runs import record
from llmsys_exp.runs.checkpoints import Checkpoint, list_checkpoints, loss_there, shown_steps
from llmsys_exp.runs.facts import Asked
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.later import add_later
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording

KEY = "checkpoint="
STEP = "consolidate"
LAST, BEST = "last", "best"


def export_checkpoint(folder: Path, which: str, console: Console) -> dict[str, Any]:
    """Write the weights of one checkpoint and return where, and what they are.

    Raises:
        UserError: when there is no such checkpoint, or it is not whole.
    """
    paths = RunPaths(folder.absolute())
    job = record.read_job(paths, where=str(folder))
    config = from_plain(job["config"])
    if config.model.kind is not ModelKind.causal_lm:
        raise UserError(
            f"Checkpoints of model.kind={config.model.kind.value} are not written out",
            do="Use merged/ of the finished run",
        )
    chosen = choose(paths, which)
    python = interpreter(config)
    require_engine("export", python)
    target = paths.consolidated / chosen.folder.name
    command = [python, "-m", "llmsys_exp.workers.consolidate", str(paths.folder), str(chosen.step)]
    env = worker_env(config, python=python, device="cpu", ranks=1)
    asked = Asked(
        config=config,
        choices=(),
        command=("llmsys", "export", str(folder), f"{KEY}{which}"),
        overrides=(f"{KEY}{which}",),
        inputs={**job["resolved"], "device": "cpu"},
        python=python,
        env=env,
    )
    with locked(paths.lock), Recording(paths, asked, start_file=paths.export_start) as recording:
        title = f"Weights of {chosen.folder.name}"
        seconds = run_titled(command, title, console, env=env, log=paths.log, verbose=False)
        result = read_json(paths.result(STEP)) or {}
        add_later(paths, recording.later(STEP, {STEP: result}, {STEP: seconds}))
    return {"folder": str(target), **result}


def choose(paths: RunPaths, which: str) -> Checkpoint:
    """Return the checkpoint that `last`, `best` or a step names.

    Raises:
        UserError: naming those that there are.
    """
    folder = paths.folder
    there = [one for one in list_checkpoints(paths.checkpoints) if not one.problem(read_all=False)]
    if not there:
        raise UserError(
            "This run has no whole checkpoint", where=str(paths.folder), do="Set checkpoint.every"
        )
    if which == LAST:
        return there[0]
    if which == BEST:
        measured = {one: loss for one in there if (loss := loss_there(one)) is not None}
        if not measured:
            raise UserError(
                "No held-out loss was measured at any of the checkpoints",
                where=str(folder),
                do=f"Name one: checkpoint=last, or a step of {shown_steps(there)}",
            )
        return min(measured, key=lambda one: (measured[one], one.step))
    found = [one for one in there if str(one.step) == which]
    if not found:
        near = closest(which, [LAST, BEST])
        raise UserError(
            f"checkpoint={which} is not there",
            where=str(paths.folder),
            do=(f"Did you mean {near}?  " if near else "")
            + f"There are {LAST}, {BEST} and {shown_steps(there)}",
        )
    return found[0]
