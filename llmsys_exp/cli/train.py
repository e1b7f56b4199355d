"""`llmsys train`: run the steps of an experiment, in a run folder of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmsys_exp.cli.hydra_verb import Point, Request, run_verb
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import EXIT_OK, DoesNotFit
from llmsys_exp.report.console import Console


def run(arguments: Sequence[str]) -> int:
    """Run one point or many."""
    return run_verb(
        "train", arguments, lambda request: run_point(request, list(request.config.steps)), end_point
    )


def run_point(request: Request, steps: list[Step]) -> int:
    """Run the steps of one point and print its summary."""
    from llmsys_exp.job import Run
    from llmsys_exp.pipeline import run_steps

    console = Console.on(sys.stderr if request.options.json else sys.stdout)
    if request.in_sweep:
        console.title(f"Point: {' '.join(request.overrides) or 'defaults'}")
    asked = Run(
        config=request.config,
        steps=steps,
        command=("llmsys", request.verb, *request.overrides),
        overrides=request.overrides,
        hydra_files=request.hydra_files,
        verbose=request.options.verbose,
    )
    manifest = run_steps(asked, console)
    if request.options.json:
        sys.stdout.write(json.dumps(manifest, indent=None if request.in_sweep else 2, default=str) + "\n")
    return EXIT_OK


def end_point(point: Point, number: int) -> None:
    """Report a point of a sweep that did not run to its end."""
    if point.error is None:
        return
    what = "not started" if isinstance(point.error, DoesNotFit) else "failed"
    sys.stderr.write(f"point {number} {what} ({' '.join(point.overrides)}): {point.error}\n")
