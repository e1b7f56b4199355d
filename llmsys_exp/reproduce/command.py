"""`llmsys reproduce RUN` from its arguments to its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.errors import EXIT_NOT_REPRODUCED, EXIT_OK, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce import shown
from llmsys_exp.reproduce.blame import Blamed, likely_causes
from llmsys_exp.reproduce.check import Checked, check
from llmsys_exp.reproduce.code_of_then import Order, check_code, rerun_with_code
from llmsys_exp.reproduce.drift import NUMBERS_PARTS, Drift, Effect, most_serious_first
from llmsys_exp.reproduce.environment import write_requirements
from llmsys_exp.reproduce.find import find_run, is_sweep, latest_folder
from llmsys_exp.reproduce.guard import check_secrets, check_settings, without_powers
from llmsys_exp.reproduce.judge.relation import relation_of
from llmsys_exp.reproduce.judge.row import Row, parts_of
from llmsys_exp.reproduce.judge.run import judge
from llmsys_exp.reproduce.logged import Logged, read_logged
from llmsys_exp.reproduce.now import look
from llmsys_exp.reproduce.rerun import rerun
from llmsys_exp.reproduce.settings import Recreated, keys_of, recreate
from llmsys_exp.reproduce.tolerances import Relation
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.paths import RunPaths

if TYPE_CHECKING:
    from llmsys_exp.cli.reproduce import Asked

OUTPUTS = Path("outputs")


@dataclass(frozen=True)
class Outcome:
    """A run that was done again."""

    logged: Logged
    found: Logged
    relation: Relation
    drifts: Sequence[Drift]
    rows: Sequence[Row]
    causes: Sequence[Blamed]

    @property
    def reproduced(self) -> bool:
        """Whether figures are judged, and all of them are within bounds."""
        judged = [row.passed for row in self.rows if row.passed is not None]
        return bool(judged) and all(judged)

    @property
    def exit_code(self) -> int:
        """0, or 5: reproduced but different."""
        return EXIT_OK if self.reproduced else EXIT_NOT_REPRODUCED

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "id": self.logged.id,
            "folder": str(self.found.file.parent),
            "reproduced": self.reproduced,
            "relation": self.relation.value,
            "rows": [row.to_dict() for row in self.rows],
            "causes": [
                {"drift": one.drift.to_dict(), "explains": one.explains, "against": one.against}
                for one in self.causes
            ],
            "drifts": [one.to_dict() for one in self.drifts],
        }


def reproduce(asked: Asked) -> int:
    """Do what the command line asks for and return the exit code."""
    outputs = asked.outputs or OUTPUTS.absolute()
    file = find_run(str(latest_folder(str(asked.run), outputs) or asked.run), outputs)
    if is_sweep(file):
        from llmsys_exp.reproduce.sweep import reproduce_sweep

        return reproduce_sweep(asked, file)
    if asked.points:
        raise UserError("--point goes with a sweep", where=str(asked.run), do="Name the folder of a sweep")
    logged = read_logged(file)
    if asked.environment is not None:
        return _environment(asked, logged)
    console = console_of(asked)
    recreated, checked = checked_run(asked, logged)
    shown.show_drifts(console, logged, checked.drifts)
    if asked.check:
        if asked.options.json:
            _print({"id": logged.id, "drifts": [one.to_dict() for one in checked.drifts]})
        return EXIT_NOT_REPRODUCED if checked.matters else EXIT_OK
    outcome = done_again(asked, logged, recreated, checked, console)
    if asked.options.json:
        _print(outcome.to_dict())
    return outcome.exit_code


def checked_run(asked: Asked, logged: Logged) -> tuple[Recreated, Checked]:
    """Recreate the settings of a run and look for drift; nothing is started.

    Raises:
        UserError: for settings that cannot be run, or that a manifest must not ask for.
    """
    where, given = str(logged.file), keys_of(asked.overrides)
    refused: list[Drift] = []
    try:
        check_settings(logged.config, given=given, trusted=asked.trust, where=where)
    except UserError as error:
        if not asked.check:
            raise
        what = f"{error.what}.  {error.why}"
        refused = [Drift("record", "settings", what, Effect.NUMBERS, NUMBERS_PARTS, do=error.do, blocks=True)]
    recreated = recreate(logged, asked.overrides, outputs=outputs_for(asked, logged))
    if refused:
        recreated = replace(recreated, config=without_powers(recreated.config))
    checked = check(logged, recreated, look(logged, recreated.config), code_of_then=asked.code)
    return recreated, Checked(tuple(most_serious_first([*refused, *checked.drifts])))


def done_again(
    asked: Asked, logged: Logged, recreated: Recreated, checked: Checked, console: Console
) -> Outcome:
    """Run it, compare and show what came out.

    Raises:
        UserError: when a drift stands in the way, and as `llmsys train` does.
    """
    _refuse_blocked(checked)
    check_secrets(recreated.config, str(logged.file))
    overrides = (*logged.manifest.get("overrides", ()), *asked.overrides)
    if asked.code:
        check_code(logged)
        found = rerun_with_code(
            logged,
            Order(_settings_of_then(logged, recreated), asked.command, overrides),
            outputs=Path(recreated.config.paths.outputs),
            console=console,
            keep=asked.keep_code,
        )
    else:
        found = rerun(
            logged,
            recreated.config,
            command=asked.command,
            overrides=overrides,
            console=console,
            verbose=asked.options.verbose,
        )
    outcome = compared(logged, found, recreated, checked.drifts)
    shown.show_rows(console, outcome.rows, outcome.relation)
    shown.show_verdict(console, outcome.rows, outcome.causes)
    target = RunPaths(found.file.parent).reproduction
    write_json(target, outcome.to_dict())
    console.line(f"  {target}")
    return outcome


def compared(logged: Logged, found: Logged, recreated: Recreated, drifts: Sequence[Drift]) -> Outcome:
    """Put two records side by side."""
    relation = relation_of(logged, recreated.config, drifts)
    rows = judge(logged, found, relation)
    failed, held = parts_of(rows)
    return Outcome(logged, found, relation, drifts, rows, likely_causes(failed, held, drifts))


def outputs_for(asked: Asked, logged: Logged) -> Path:
    """Return where the new run folder goes: as asked, else beside the old one, else ./outputs."""
    if asked.outputs is not None:
        return asked.outputs
    folder = logged.paths.folder if logged.paths is not None else None
    if folder is not None and folder.parent.name == logged.config.get("name"):
        return folder.parent.parent
    return OUTPUTS.absolute()


def console_of(asked: Asked) -> Console:
    """Return where words go: beside the result where that is JSON."""
    return Console.on(sys.stderr if asked.options.json else sys.stdout)


def _refuse_blocked(checked: Checked) -> None:
    blocking = checked.blocking
    if not blocking:
        return
    first = blocking[0]
    more = f"; {len(blocking) - 1} more reasons are above" if len(blocking) > 1 else ""
    raise UserError(f"Not started: {first.what}{more}", do=first.do)


def _settings_of_then(logged: Logged, recreated: Recreated) -> dict[str, Any]:
    """Settings as the code of then knows them: today's configuration without what has come since."""
    return _like(to_plain(recreated.config), logged.config)


def _like(plain: Any, known: Any) -> Any:
    if not isinstance(plain, dict) or not isinstance(known, dict):
        return plain
    gone = {key: value for key, value in known.items() if key not in plain}
    return {key: _like(value, known[key]) for key, value in plain.items() if key in known} | gone


def _environment(asked: Asked, logged: Logged) -> int:
    assert asked.environment is not None
    commands = write_requirements(logged, asked.environment)
    if asked.options.json:
        _print({"file": str(asked.environment), "commands": commands})
        return EXIT_OK
    console = console_of(asked)
    console.line(f"Packages of {logged.id}: {asked.environment}")
    for line in commands:
        console.line(f"  {line}")
    return EXIT_OK


def _print(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")
