"""`llmsys runs [FOLDER]`: list run folders with state, loss, score and peak memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.cli.options import split_options, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console, duration, gib
from llmsys_exp.runs.listing import RunRow, list_runs

_HELP = """llmsys runs - list run folders with state, loss, score and peak memory

Usage:  llmsys runs [FOLDER] [--json]        FOLDER: where run folders are, outputs by default;
                                             paths.outputs=FOLDER, as the other verbs say it, will do
"""


def run(arguments: Sequence[str]) -> int:
    """List the runs below a folder."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    flags = [text for text in rest if text.startswith("-")]
    if flags or len(rest) > 1:
        raise unknown_argument([*flags, *rest[1:]][0], ["--json", "--help"], where="llmsys runs")
    outputs = Path(rest[0].removeprefix("paths.outputs=") if rest else "outputs")
    if rest and not outputs.is_dir():
        raise UserError(
            "There is no such folder", where=str(outputs), do="Name the folder that paths.outputs names"
        )
    rows = list_runs(outputs)
    if options.json:
        sys.stdout.write(json.dumps([row.to_dict() for row in rows], indent=2) + "\n")
    else:
        _show(Console.on(sys.stdout), rows, outputs)
    return EXIT_OK


def _show(console: Console, rows: Sequence[RunRow], outputs: Path) -> None:
    if not rows:
        console.line(f"No runs in {outputs}.  Start one:  llmsys train experiment=quickstart")
        return
    header = ("name", "state", "loss", "score", "peak GiB", "time", "folder")
    console.table([_cells(row) for row in rows], header=header, right=(2, 3, 4, 5))


def _cells(row: RunRow) -> tuple[str, ...]:
    return (
        row.name,
        row.state,
        "-" if row.loss is None else f"{row.loss:.4f}",
        "-" if row.score is None else f"{row.score:.3f}",
        "-" if row.peak_bytes is None else gib(row.peak_bytes),
        "-" if row.seconds is None else duration(row.seconds),
        os.path.relpath(row.folder),
    )
