"""`llmsys compare A B ...`: what was different between runs, and what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.cli.options import split_options, take_values, unknown_argument
from llmsys_exp.compare.comparison import compare_runs
from llmsys_exp.compare.curves import curve_picture
from llmsys_exp.compare.shown import show_comparison
from llmsys_exp.compare.subjects import find_subjects
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.layout import finite
from llmsys_exp.report.table_files import check_files, write_whole

_HELP = """llmsys compare - what was different between runs, and what came of it

Usage:  llmsys compare A B ... [-o FILE.png] [--answers N] [--outputs FOLDER] [--json]

A, B ...            2 to 20 runs: folders, ids NAME/FOLDER, manifests, latest, latest~1; a sweep: its points
-o FILE.png         loss curves as a picture (.svg, .pdf); --force replaces an existing file
--answers N         how many answers that differ are shown (3)
--outputs FOLDER    where ids and latest are looked up (outputs)

Shown: settings that differ with where each comes from; code, packages, machine, data and model that differ
with what that may change; figures; loss curves on the same axes; answers. The first run, A, is what the
others are held against. Runs that were killed and those of an older llmsys are compared as far as they tell.
"""
_VALUES = {"-o": "FILE.png", "--output": "FILE.png", "--answers": "N", "--outputs": "FOLDER"}


def run(arguments: Sequence[str]) -> int:
    """Compare runs."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    values, rest = take_values(rest, _VALUES)
    force, rest = "--force" in rest, [text for text in rest if text != "--force"]
    unknown = [text for text in rest if text.startswith("-")]
    if unknown:
        raise unknown_argument(unknown[0], [*_VALUES, "--force", "--json", "--help"], where="llmsys compare")
    count = values.get("--answers", "3")
    if not count.isdecimal():
        raise UserError(f"--answers {count} is no number of answers")
    asked = values.get("-o", values.get("--output"))
    if asked is not None:
        check_files({"-o": Path(asked)}, force=force)
    subjects = find_subjects(rest, Path(values.get("--outputs", "outputs")))
    found = compare_runs(subjects, answers=int(count))
    if asked is not None:
        if not found.curves:
            raise UserError(
                "None of these runs has logged a loss, so there is nothing to draw", where=f"-o {asked}"
            )
        write_whole(Path(asked), curve_picture(found.curves, found.labels, Path(asked).suffix.lower()))
    if options.json:
        picture = None if asked is None else str(Path(asked).absolute())
        content = finite({**found.to_dict(), "picture": picture})
        sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")
        return EXIT_OK
    console = Console.on(sys.stdout)
    show_comparison(console, found)
    if asked is not None:
        console.line(f"  curves: {asked}")
    return EXIT_OK
