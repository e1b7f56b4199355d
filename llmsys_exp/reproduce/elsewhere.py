"""`llmsys reproduce --from FILE`: another tool's experiment, imported, run, compared with its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.config.schema import Step
from llmsys_exp.errors import EXIT_NOT_REPRODUCED, EXIT_OK, UserError
from llmsys_exp.importers import Imported, LoggedRun, read, read_log
from llmsys_exp.importers.experiment import Experiment, build, model_shape
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.pipeline import run_steps
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce import shown
from llmsys_exp.reproduce.blame import likely_causes
from llmsys_exp.reproduce.drift import Drift
from llmsys_exp.reproduce.effects import NUMBERS
from llmsys_exp.reproduce.judge.elsewhere import rows_of
from llmsys_exp.reproduce.judge.row import parts_of
from llmsys_exp.reproduce.series import read_log as read_ours
from llmsys_exp.reproduce.tolerances import Relation
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.paths import RunPaths

if TYPE_CHECKING:
    from llmsys_exp.cli.reproduce import Asked


def reproduce_file(asked: Asked) -> int:
    """Import, say what is lost, run, compare; return the exit code.

    Raises:
        UserError: when it cannot be read or planned, or there is no log to compare with.
    """
    _refuse_flags(asked)
    file = Path(str(asked.file))
    imported = read(file, model=model_shape(asked.overrides))
    theirs = read_log(_log_of(asked, imported))
    experiment = build(imported, [*asked.overrides, "training.log_every=1"])
    console = _console(asked)
    drifts = _drifts(experiment)
    _show(console, experiment, theirs, drifts)
    if experiment.plan is None:
        raise UserError(experiment.refusal, where=str(file))
    if asked.check:
        if asked.options.json:
            _print({"imported": experiment.imported.to_dict(), "log": theirs.to_dict()})
        return EXIT_NOT_REPRODUCED if any(one.matters for one in drifts) else EXIT_OK
    return _run(asked, experiment, theirs, drifts, console)


def _run(
    asked: Asked, experiment: Experiment, theirs: LoggedRun, drifts: Sequence[Drift], console: Console
) -> int:
    config = experiment.config
    if asked.outputs is not None:
        config.paths.outputs = str(asked.outputs)
    run = Run(
        config=config,
        steps=[Step.train],
        command=asked.command,
        overrides=tuple(experiment.overrides),
        verbose=asked.options.verbose,
        reproduces=str(theirs.source),
    )
    manifest = run_steps(run, console)
    paths = RunPaths(Path(manifest["folder"]))
    evaluation = (manifest["results"]["train"].get("evaluation")) or {}
    found = rows_of(theirs, read_ours(paths.metrics), evaluation)
    rows = [row for row in found if row is not None]
    failed, held = parts_of(rows)
    causes = likely_causes(failed, held, drifts)
    shown.show_rows(console, rows, Relation.other_program)
    shown.show_verdict(console, rows, causes)
    reproduced = all(row.passed is not False for row in rows)
    outcome = {
        "id": str(theirs.source),
        "folder": str(paths.folder),
        "reproduced": reproduced,
        "relation": Relation.other_program.value,
        "rows": [row.to_dict() for row in rows],
        "causes": [
            {"drift": one.drift.to_dict(), "explains": one.explains, "against": one.against} for one in causes
        ],
        "drifts": [one.to_dict() for one in drifts],
        "imported": experiment.imported.to_dict(),
    }
    write_json(paths.reproduction, outcome)
    if asked.options.json:
        _print(outcome)
    return EXIT_OK if reproduced else EXIT_NOT_REPRODUCED


def _log_of(asked: Asked, imported: Imported) -> Path:
    """Return the log to compare with: as named, else what lies beside the file."""
    if asked.log is not None:
        return asked.log
    there = [one for one in imported.logs if one.is_file()]
    if not there:
        looked = ", ".join(str(one) for one in imported.logs[:4])
        raise UserError(
            "There is no log beside this file to compare with",
            where=str(imported.source),
            why=f"Looked for {looked}" if looked else "",
            do="Name it with --log FILE; `llmsys import` takes the settings alone",
        )
    return there[0]


def _drifts(experiment: Experiment) -> list[Drift]:
    """What could not be carried over."""
    return [
        Drift(
            "settings",
            one.key,
            f"{one.key}={one.value}: {one.why}",
            NUMBERS.effect,
            NUMBERS.shows_in,
            do=one.do,
        )
        for one in experiment.imported.lost
    ]


def _show(console: Console, experiment: Experiment, theirs: LoggedRun, drifts: Sequence[Drift]) -> None:
    imported = experiment.imported
    console.title(f"{imported.source.name} ({imported.format})")
    console.line(f"  {len(imported.settings)} settings: {' '.join(imported.overrides())}")
    told = f"{len(theirs.steps)} losses and {len(theirs.evaluation)} evaluations"
    console.line(f"  log: {told} in {theirs.source}")
    if drifts:
        console.title("Not carried over")
        shown.list_drifts(console, drifts)
    notes = (*imported.notes, *theirs.notes)
    if notes:
        console.title("To know")
        console.table([("-", note) for note in notes])


def _refuse_flags(asked: Asked) -> None:
    for flag, given in (
        ("--code", asked.code),
        ("--point", asked.points),
        ("--environment", asked.environment),
        ("--trust", asked.trust),
    ):
        if given:
            raise UserError(f"{flag} does not go with --from", why="Another tool's files tell nothing of it")


def _console(asked: Asked) -> Console:
    return Console.on(sys.stderr if asked.options.json else sys.stdout)


def _print(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")
