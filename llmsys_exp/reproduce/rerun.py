"""Do a recorded run again, in a new run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.pipeline import run_steps
from llmsys_exp.report.console import Console
from llmsys_exp.reproduce.logged import Logged, read_logged
from llmsys_exp.runs.paths import RunPaths


def rerun(
    logged: Logged,
    config: Config,
    *,
    command: Sequence[str],
    overrides: Sequence[str],
    console: Console,
    verbose: bool,
) -> Logged:
    """Run the settings of a run and return the new record.

    Raises:
        UserError: as `llmsys train` and `llmsys infer` do.
    """
    run = Run(
        config=config,
        steps=list(config.steps),
        command=tuple(command),
        overrides=tuple(overrides),
        verbose=verbose,
        adapter=logged.section("inputs").get("adapter_folder"),
        reproduces=logged.id,
        choices=logged.choices,
    )
    manifest = run_steps(run, console)
    return read_logged(RunPaths(Path(manifest["folder"])).manifest)
