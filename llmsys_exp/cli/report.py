"""`llmsys report RUN`: one page of a run, or of a sweep, to open in a browser."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.browse.named import named_file
from llmsys_exp.cli.options import Options, split_options, take_values, unknown_argument
from llmsys_exp.cli.sweep_results import OUTPUT, check_page, tell_page
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.layout import check_package, write_page
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.sweeps.folder import FILE as SWEEP_FILE
from llmsys_exp.sweeps.folder import SweepPaths
from llmsys_exp.sweeps.results.warm import WARM_CSV

_HELP = """llmsys report - one page of a run, to open in a browser

Usage:  llmsys report RUN [-o FILE.html] [--outputs FOLDER] [--json]

RUN                 a run folder, its manifest.json, its id NAME/FOLDER, latest, or latest~1 for the one
                    before it; of a sweep's folder, its page
-o FILE.html        where to write it; report.html in the run folder by default
--outputs FOLDER    where ids and latest are looked up (outputs)

The page holds all it needs and loads nothing: what came out beside the forecast, curves, settings with their
reasons, environment, answers and commands. A run that was stopped or killed has one, too.
"""


def run(arguments: Sequence[str]) -> int:
    """Write the page of a run."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    values, rest = take_values(rest, {**OUTPUT, "--outputs": "FOLDER"})
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], [*OUTPUT, "--outputs", "--json", "--help"], where="llmsys report")
    if len(rest) != 1:
        raise UserError("report takes one run", do="llmsys runs lists them; llmsys report RUN")
    check_package()
    folder = _folder(rest[0], Path(values.get("--outputs", "outputs")))
    asked = values.get("-o", values.get("--output"))
    if (folder / WARM_CSV).is_file() and not RunPaths(folder).job.is_file():
        return _write_warm(folder, folder / "report.html" if asked is None else Path(asked), options)
    if (folder / SWEEP_FILE).is_file():
        from llmsys_exp.cli.sweep_results import report

        return report([str(folder), *(["-o", asked] if asked else [])], options)
    return _write(folder, RunPaths(folder).report if asked is None else Path(asked), options)


def _write(folder: Path, page: Path, options: Options) -> int:
    from llmsys_exp.report.pages.run_page import run_page
    from llmsys_exp.runs.told import read_told

    check_page(page)
    told = read_told(folder)
    write_page(page, run_page(told))
    if options.json:
        content = {"page": str(page.absolute()), "run": told.record["id"], "complete": told.complete}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        Console.on(sys.stdout).line(os.path.relpath(page))
    return EXIT_OK


def _write_warm(folder: Path, page: Path, options: Options) -> int:
    """Write the page of a sweep of `llmsys infer -m`."""
    from llmsys_exp.report.pages.sweep_page import sweep_page
    from llmsys_exp.sweeps.results.warm import read_warm_sweep

    check_page(page)
    sweep, results = read_warm_sweep(folder)
    write_page(page, sweep_page(SweepPaths(folder), sweep, results))
    tell_page(page, results, [], options)
    return EXIT_OK


def _folder(text: str, outputs: Path) -> Path:
    """Return the folder of a run or sweep; one that was killed early has nothing but job.json.

    Raises:
        UserError: when there is none.
    """
    for folder in (Path(text).expanduser(), outputs / text):
        if (folder / WARM_CSV).is_file():
            return folder.absolute()
    file = named_file(text, outputs)
    paths = RunPaths(file.parent)
    if file.name not in (SWEEP_FILE, *(one.name for one in (paths.manifest, paths.start, paths.job))):
        do = f"Put it into a folder of its own as {paths.manifest.name}"
        raise UserError("A page is made of a run folder", where=text, do=do)
    return file.parent
