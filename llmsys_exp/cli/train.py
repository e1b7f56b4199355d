"""`llmsys train`: run the steps of an experiment, in a run folder of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmsys_exp.cli.hydra_verb import Point, Request, run_verb
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import EXIT_OK, DoesNotFit, JobError, UserError
from llmsys_exp.report.console import Console


def run(arguments: Sequence[str]) -> int:
    """Run one point or many, or go on with a run."""
    if any(text.startswith("resume=") for text in arguments):
        return resume("train", arguments)
    return run_verb(
        "train", arguments, lambda request: run_point(request, list(request.config.steps)), end_point
    )


def run_point(request: Request, steps: list[Step]) -> int:
    """Run the steps of one point and print its summary."""
    from llmsys_exp.jobs.job import Run
    from llmsys_exp.jobs.pipeline import run_steps

    console = Console.on(sys.stderr if request.options.json else sys.stdout)
    if request.in_sweep:
        console.title(f"Point: {' '.join(request.overrides) or 'defaults'}")
    if request.config.data.preview and Step.train in steps:
        return _preview(request, console)
    asked = Run(
        config=request.config,
        steps=steps,
        command=("llmsys", request.verb, *request.overrides),
        overrides=request.overrides,
        hydra_files=request.hydra_files,
        verbose=request.options.verbose,
    )
    try:
        manifest = run_steps(asked, console)
    except JobError as failure:
        if failure.kind == "stopped" and request.in_sweep:
            # who stops a point stops the sweep
            sys.stderr.write(f"{failure}\n")
            raise KeyboardInterrupt from failure
        raise
    if request.options.json:
        sys.stdout.write(json.dumps(manifest, indent=None if request.in_sweep else 2, default=str) + "\n")
    return EXIT_OK


def _preview(request: Request, console: Console) -> int:
    """Show the data and start nothing."""
    from llmsys_exp.jobs.preview import preview

    shown = preview(request.config, console)
    if request.options.json:
        sys.stdout.write(json.dumps(shown, indent=None if request.in_sweep else 2) + "\n")
    return EXIT_OK


def resume(verb: str, arguments: Sequence[str]) -> int:
    """Go on with the run in a folder: `resume=FOLDER`, and overrides that leave what it does as it is."""
    from llmsys_exp.cli.options import split_options
    from llmsys_exp.jobs.pipeline import resume_run
    from llmsys_exp.jobs.resume import split_resume
    from llmsys_exp.jobs.resume_inference import is_inference
    from llmsys_exp.runs.paths import RunPaths

    options, rest = split_options(arguments)
    folder, overrides = split_resume(rest)
    if verb == "infer" and RunPaths(folder).job.is_file() and not is_inference(RunPaths(folder)):
        raise UserError(
            "This run does more than answering prompts",
            where=f"resume={folder}",
            do=f"Go on with it: llmsys train resume={folder}; what it trained: llmsys infer run={folder}",
        )
    console = Console.on(sys.stderr if options.json else sys.stdout)
    manifest = resume_run(
        folder, overrides, command=("llmsys", verb, *rest), console=console, verbose=options.verbose
    )
    if options.json:
        sys.stdout.write(json.dumps(manifest, indent=2, default=str) + "\n")
    return EXIT_OK


def end_point(point: Point, number: int) -> None:
    """Report a point of a sweep that did not run to its end."""
    if point.error is None:
        return
    what = "not started" if isinstance(point.error, DoesNotFit) else "failed"
    sys.stderr.write(f"point {number} {what} ({' '.join(point.overrides)}): {point.error}\n")
