"""`llmsys export RUN_FOLDER`: merge the adapter of a run into a plain model folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.cli.options import split_options, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console

_HELP = """llmsys export - merge the adapter of a run into a plain model folder, RUN_FOLDER/merged

Usage:  llmsys export RUN_FOLDER [--json]
"""


def run(arguments: Sequence[str]) -> int:
    """Merge one run."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], ["--json", "--help"], where="llmsys export")
    if len(rest) != 1:
        raise UserError("export takes one run folder", do="llmsys runs lists them")
    result = _export(Path(rest[0]), Console.on(sys.stderr if options.json else sys.stdout))
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return EXIT_OK


def _export(folder: Path, console: Console) -> dict[str, object]:
    from llmsys_exp.config.plain import from_plain
    from llmsys_exp.inputs import Inputs
    from llmsys_exp.pipeline import export_run
    from llmsys_exp.runs.files import read_json
    from llmsys_exp.runs.paths import RunPaths

    paths = RunPaths(folder.absolute())
    job = read_json(paths.job)
    if not isinstance(job, dict):
        raise UserError(
            "This is not a run folder", where=str(folder), why="It holds no job.json", do="llmsys runs"
        )
    if not paths.adapter.is_dir():
        raise UserError("This run has no adapter to merge", where=str(folder), do="Train with method=lora")
    inputs = Inputs(**job["resolved"])
    result = export_run(paths, config=from_plain(job["config"]), inputs=inputs, console=console)
    console.line(f"Merged model: {paths.merged}")
    return {**result, "folder": str(paths.merged)}
