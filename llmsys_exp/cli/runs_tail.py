"""`llmsys runs tail`: the end of a run's log, and what comes as long as it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.browse.named import named_folder
from llmsys_exp.browse.tail import added, last_lines
from llmsys_exp.cli.options import Options, take_values, unknown_argument
from llmsys_exp.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_OK,
    EXIT_STOPPED,
    UserError,
)
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce.find import LATEST
from llmsys_exp.runs.migrate import run_id
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import COMPLETE, FAILED, RUNNING, state_of

LINES = "20"
POLL_S = 0.5
_FLAGS = ["--follow", "--lines", "--outputs", "--json"]


def run(rest: Sequence[str], options: Options) -> int:
    """Show the end of a log; with --follow the exit code tells how the run ended."""
    values, rest = take_values(rest, {"--lines": "N", "--outputs": "FOLDER"})
    follows = any(text in ("--follow", "-f") for text in rest)
    rest = [text for text in rest if text not in ("--follow", "-f")]
    unknown = [text for text in rest if text.startswith("-")]
    if unknown or len(rest) > 1:
        raise unknown_argument([*unknown, *rest[1:]][0], _FLAGS, where="llmsys runs tail")
    count = values.get("--lines", LINES)
    if not count.isdecimal():
        raise UserError(f"--lines {count} is no number of lines")
    if follows and options.json:
        raise UserError(
            "--json does not go with --follow", do="llmsys runs tail RUN --json shows the last lines"
        )
    outputs = Path(values.get("--outputs", "outputs"))
    paths = RunPaths(named_folder(rest[0] if rest else LATEST, outputs))
    try:
        return _show(paths, int(count), follows=follows, as_json=options.json)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"Cannot read the log: {error.strerror or error}", where=str(paths.log)) from error


def _show(paths: RunPaths, count: int, *, follows: bool, as_json: bool) -> int:
    lines, end = last_lines(paths.log, count)
    name = run_id(paths.folder)
    if as_json:
        content = {"run": name, "folder": str(paths.folder), "state": state_of(paths), "lines": lines}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return EXIT_OK
    console, said = Console.on(sys.stdout), Console.on(sys.stderr)
    for line in lines:
        console.line(line)
    try:
        if follows:
            for line in added(paths.log, end, lambda: state_of(paths) == RUNNING, POLL_S):
                console.line(line)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED  # nothing was started here, so there is nothing to say
    state = state_of(paths)
    nothing = "" if paths.log.is_file() else "no log yet; "
    said.line(said.style(f"{name}: {nothing}{state}", "dim"))
    if not follows or state == COMPLETE:
        return EXIT_OK
    return EXIT_JOB_FAILED if state.startswith(FAILED) else EXIT_STOPPED
