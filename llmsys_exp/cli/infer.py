"""`llmsys infer`: answer prompts with a model, in a run folder of its own, or for every point of a sweep.

    llmsys infer inference.prompts=FILE ...       the configured model
    llmsys infer run=RUN_FOLDER ...               what a finished run has trained, with its template
    llmsys infer resume=RUN_FOLDER                go on with an inference run that was stopped or killed
    llmsys infer -m KEY=A,B KEY=C,D ...           every combination; one start of an engine answers all it can
    llmsys infer -m --one-at-a-time KEY=A,B ...   each setting alone, the others at the first of their values

Swept values may stand in an experiment, under `hydra.sweeper.params`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.hydra_verb import run_verb
from llmsys_exp.cli.options import Options, split_options
from llmsys_exp.cli.train import end_point, resume, run_point
from llmsys_exp.config.schema import GatePolicy, Step
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK, DoesNotFit, UserError
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.jobs.infer_sweep import SweepPoint
    from llmsys_exp.jobs.job import Run

RESUME, RUN = "resume=", "run="


def run(arguments: Sequence[str]) -> int:
    """Run one point or many, go on with a run, or serve one."""
    from llmsys_exp.cli.infer_points import MULTIRUN, ONE_AT_A_TIME

    options, rest = split_options(arguments)
    if options.help:
        return run_verb("infer", arguments, lambda request: EXIT_OK, end_point)
    if any(text.startswith(RESUME) for text in rest):
        return resume("infer", arguments)
    if ONE_AT_A_TIME in rest or any(text in MULTIRUN for text in rest):
        return _sweep(options, rest)
    if any(text.startswith(RUN) for text in rest):
        return _serve(options, rest)
    return run_verb("infer", arguments, lambda request: run_point(request, [Step.infer]), end_point)


def _serve(options: Options, rest: Sequence[str]) -> int:
    """Answer prompts with what a run has trained."""
    from llmsys_exp.jobs.inference import run_inference

    folder, overrides = _split_run(rest)
    flags = [text for text in overrides if text.startswith("-")]
    if flags:
        raise UserError(f"{flags[0]} does not go with run=", why="The configuration is the run's own")
    console = Console.on(sys.stderr if options.json else sys.stdout)
    manifest = run_inference(_composer(folder, overrides, options)(overrides), console)
    if options.json:
        sys.stdout.write(json.dumps(manifest, indent=2, default=str) + "\n")
    return EXIT_OK


def _sweep(options: Options, rest: Sequence[str]) -> int:
    """Check every point, run those that may start, and show what came of all of them."""
    from llmsys_exp.cli.infer_points import ONE_AT_A_TIME, hydra_points, own_points
    from llmsys_exp.jobs.infer_sweep import check_points, run_points

    apart = ONE_AT_A_TIME in rest
    arguments = [text for text in rest if text != ONE_AT_A_TIME]
    console = Console.on(sys.stderr if options.json else sys.stdout)
    if any(text.startswith(RUN) for text in rest):
        folder, arguments = _split_run(arguments)
        compose = _composer(folder, [text for text in arguments if not text.startswith("-")], options)
        points = own_points(arguments, options, one_at_a_time=apart, compose=compose)
    elif apart:
        points = own_points(arguments, options, one_at_a_time=True, compose=None)
    else:
        points = hydra_points([*arguments, *(["--verbose"] if options.verbose else [])])
    check_points(points)
    for point in points:
        if point.error is not None:
            said = " ".join(point.overrides)
            sys.stderr.write(f"point {point.number} not started ({said}): {point.error}\n")
    table = _Table(points)
    try:
        run_points(points, console, on_complete=table.keep)
    finally:
        _end_sweep(points, table, console, as_json=options.json)
    return _exit_code(points)


class _Table:
    """The folder of a sweep, made when a point is first complete: a sweep that is killed leaves its table."""

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        from llmsys_exp.jobs.infer_sweep import sweep_parent

        self._points = points
        self._outputs, self.name = sweep_parent(points)
        self._folder: Path | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each point, as it stands."""
        from llmsys_exp.report.infer_rows import sweep_row

        return [sweep_row(point) for point in self._points]

    def folder(self) -> Path:
        """Return the folder; raises UserError where none can be made."""
        from llmsys_exp.runs.folder import create_sweep_folder

        if self._folder is None:
            self._folder = create_sweep_folder(self._outputs, self.name)
        return self._folder

    def keep(self) -> None:
        """Write what is known; a disk that refuses is told of at the end, and ends no point."""
        from llmsys_exp.report.infer_sweep import write_csv

        with suppress(UserError):
            write_csv(self.folder(), self.rows())


def _end_sweep(points: Sequence[SweepPoint], table: _Table, console: Console, *, as_json: bool) -> None:
    """Show and write what is done: whatever stopped the rest, it has been waited for."""
    from llmsys_exp.jobs.infer_sweep import COMPLETE
    from llmsys_exp.report.infer_sweep import show_sweep, write_sweep

    rows = table.rows()
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row, default=str) + "\n")
    if not any(point.state == COMPLETE for point in points):
        return
    show_sweep(console, rows)
    folder = table.folder()
    notes = write_sweep(folder, rows, title=table.name)
    console.line()
    console.line(f"Table, pictures and changes: {folder}")
    for note in notes:
        console.line(console.style(f"  note: {note}", "yellow"))


def _exit_code(points: Sequence[SweepPoint]) -> int:
    """Return the worst of the points; a point that the gate skips by policy is none."""
    errors = [point.error for point in points if point.error is not None]
    if len(errors) == len(points) and all(isinstance(error, DoesNotFit) for error in errors):
        return EXIT_DOES_NOT_FIT
    codes = [
        error.exit_code
        for point in points
        if (error := point.error) is not None and not (isinstance(error, DoesNotFit) and _skips(point))
    ]
    return max(codes, default=EXIT_OK)


def _skips(point: SweepPoint) -> bool:
    return point.run is not None and point.run.config.gate.policy is GatePolicy.skip


def _split_run(rest: Sequence[str]) -> tuple[Path, list[str]]:
    from llmsys_exp.jobs.serve_run import split_run

    return split_run(rest)


def _composer(folder: Path, overrides: Sequence[str], options: Options) -> Callable[[Sequence[str]], Run]:
    """Return what makes runs of overrides over a trained run; unknown names are refused at once."""
    from llmsys_exp.config.compose import find_problems
    from llmsys_exp.errors import ConfigError
    from llmsys_exp.jobs.job import Run
    from llmsys_exp.jobs.serve_run import open_run

    problems = find_problems(list(overrides))
    if problems:
        raise ConfigError(problems)
    trained = open_run(folder)

    def compose(overrides: Sequence[str]) -> Run:
        config, adapter = trained.configured(overrides)
        command = ("llmsys", "infer", f"{RUN}{folder}", *overrides)
        return Run(config, [Step.infer], command, overrides, verbose=options.verbose, adapter=adapter)

    return compose
