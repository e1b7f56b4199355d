"""`data.preview`: what a job would learn, token by token. Trains nothing and leaves no run folder."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import JobError
from llmsys_exp.inputs.dataset_info import settle_data
from llmsys_exp.inputs.find import Inputs, conversion, find_inputs
from llmsys_exp.jobs.shown import run_shown
from llmsys_exp.launch.environment import worker_env
from llmsys_exp.launch.interpreter import interpreter, require_engine
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.report.console import Console
from llmsys_exp.report.preview_text import show_preview
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.record import JOB_SCHEMA_VERSION


def preview(config: Config, console: Console) -> dict[str, Any]:
    """Tokenise the data as training would, show the first examples, and return all that is shown.

    Raises:
        UserError: for anything wrong with settings or data.
    """
    check_settings(config)
    config = replace(config, data=settle_data(config.data))
    python = interpreter(config)
    require_engine(Step.train.name, python)
    inputs = find_inputs(config, [Step.train])
    with tempfile.TemporaryDirectory(prefix="llmsys-preview-") as folder:
        paths = RunPaths(Path(folder))
        paths.results.mkdir()
        job = {"schema_version": JOB_SCHEMA_VERSION, "config": to_plain(config), "resolved": inputs.to_dict()}
        write_json(paths.job, job)
        _run_workers(config, inputs, paths, python, console)
        shown = read_json(paths.result("preview"))
    if shown is None:
        raise JobError("The preview ended well but left no result")
    show_preview(console, shown)
    return shown


def _run_workers(config: Config, inputs: Inputs, paths: RunPaths, python: str, console: Console) -> None:
    """Make sure that the tokenizer is there, then let the worker read the data."""
    reading = [python, "-m", "llmsys_exp.workers.preview", str(paths.folder)]
    env = worker_env(config, python=python, device="cpu", ranks=1)
    for command in (conversion(config, python), reading):
        if command is not None:
            run_shown(command, console, env=env, log=paths.log)
