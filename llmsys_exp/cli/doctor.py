"""`llmsys doctor`: what is here, what does not go together, and how to mend it. To paste in a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmsys_exp.cli.options import no_more_arguments, split_options
from llmsys_exp.doctor.engines import pythons
from llmsys_exp.doctor.examine import examine
from llmsys_exp.doctor.finding import PROBLEM
from llmsys_exp.doctor.look import Look
from llmsys_exp.doctor.shown import show
from llmsys_exp.errors import EXIT_OK, EXIT_USER
from llmsys_exp.report.console import Console

_HELP = """llmsys doctor - what is here, what does not go together, and how to mend it

Usage:  llmsys doctor [overrides] [--json]

Overrides say where engines and folders are: launcher.python=FILE, inference.sglang.python=FILE,
paths.outputs=FOLDER. Nothing heavy is loaded, nothing is changed, and no value of a secret is shown.

Each line is ok, a note (worth knowing) or a problem (would stop a run here), with what mends it.
Exit codes: 0 no problem, 2 a problem.
"""


def run(arguments: Sequence[str]) -> int:
    """Look around and report."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_HELP)
        return EXIT_OK
    flags = [text for text in rest if text.startswith("-") or "=" not in text]
    no_more_arguments("doctor", flags)
    report = examine(Look(**pythons(rest)))
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(Console.on(sys.stdout), report)
    return EXIT_USER if report["counts"][PROBLEM] else EXIT_OK
