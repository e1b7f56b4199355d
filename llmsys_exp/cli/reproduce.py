"""`llmsys reproduce RUN`: say what has changed since, run it again as it was, compare metric by metric."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.calibrate.apply import leave_aside
from llmsys_exp.cli.options import Options, split_options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError

_HELP = """llmsys reproduce - run a recorded run again and compare what comes out with what was logged

Usage
  llmsys reproduce RUN [KEY=VALUE ...] [flags]     RUN: a folder, a manifest, an id NAME/FOLDER, latest
  llmsys reproduce SWEEP [--point N,...] [flags]   the points of a sweep, all that are done or some of them
  llmsys reproduce --from FILE [flags]             an experiment that another tool has logged

Before anything starts it lists what is not as it was - code, packages, machine, data, model, settings - and
what each may change. The recorded settings are what is run, whatever the defaults are today. KEY=VALUE sets
something else on purpose: hardware=h100, model.path=FOLDER or data.train=FILE for files that moved.

Flags
  --check               list what has changed, and stop
  --code                run it with the code of then: a git worktree at its commit, with its changes
  --keep-code           the same, and leave that code in the new run folder
  --environment FILE    write the packages of then as a requirements file, show the commands, and stop
  --outputs FOLDER      where ids are looked up, and where the new run folder goes (beside the old one)
  --log FILE            with --from: the log to compare with (what lies beside the file)
  --point N,...         points of a sweep (all that are done)
  --trust               take over programs, variables and servers that the manifest names
  --json, --verbose     machine-readable result; with the log of the workers

Exit codes: 0 reproduced (--check: nothing that matters has changed), 5 reproduced but different (--check:
something has that may change memory or numbers), 2 something needs a change, 3 does not fit, 4 job failed.
"""
SWITCHES = ("--check", "--code", "--keep-code", "--trust")
VALUES = {
    "--environment": "FILE",
    "--outputs": "FOLDER",
    "--point": "N,...",
    "--from": "FILE",
    "--log": "FILE",
}


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    run: str | None
    overrides: tuple[str, ...]
    check: bool
    code: bool
    keep_code: bool
    trust: bool
    environment: Path | None
    outputs: Path | None
    points: tuple[int, ...]
    file: Path | None
    log: Path | None
    options: Options
    arguments: tuple[str, ...]
    """As they were typed, for the record."""

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line."""
        return ("llmsys", "reproduce", *self.arguments)


def run(arguments: Sequence[str]) -> int:
    """Check a run, and do it again."""
    options, rest = split_options(arguments)
    leave_aside()
    if options.help or not rest:
        sys.stdout.write(_HELP)
        return EXIT_OK
    asked = _asked(options, rest)
    if asked.file is not None:
        from llmsys_exp.reproduce.elsewhere import reproduce_file

        return reproduce_file(asked)
    from llmsys_exp.reproduce.command import reproduce

    return reproduce(asked)


def _asked(options: Options, rest: list[str]) -> Asked:
    values, left = take_values(rest, VALUES)
    switches = [text for text in left if text in SWITCHES]
    left = [text for text in left if text not in SWITCHES]
    flags = [text for text in left if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], [*SWITCHES, *VALUES, "--json"], where="llmsys reproduce")
    overrides = [text for text in left if "=" in text and not Path(text).exists()]
    named = [text for text in left if text not in overrides]
    outputs = next((text.partition("=")[2] for text in overrides if text.startswith("paths.outputs=")), None)
    outputs = values.get("--outputs", outputs)
    if len(named) > 1 or bool(named) == ("--from" in values):
        raise UserError(
            f"{len(named)} runs are named" if "--from" not in values else "A run goes without --from",
            where=" ".join(named),
            do="Name one run: its folder, its manifest or its id; `llmsys runs` lists them",
        )
    return Asked(
        run=named[0] if named else None,
        overrides=tuple(text for text in overrides if not text.startswith("paths.outputs=")),
        check="--check" in switches,
        code="--code" in switches or "--keep-code" in switches,
        keep_code="--keep-code" in switches,
        trust="--trust" in switches,
        environment=Path(values["--environment"]) if "--environment" in values else None,
        outputs=Path(outputs).expanduser().absolute() if outputs else None,
        points=_points(values.get("--point")),
        file=Path(values["--from"]) if "--from" in values else None,
        log=Path(values["--log"]) if "--log" in values else None,
        options=options,
        arguments=tuple(rest),
    )


def _points(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        numbers = tuple(int(one) for one in text.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise UserError(f"--point {text} names no points", do="Write --point 3, or --point 1,4")
    return numbers
