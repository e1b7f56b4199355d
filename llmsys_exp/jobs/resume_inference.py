"""Go on with an inference run that was stopped or killed: what is answered is kept, the rest is asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.inputs.find import Inputs
from llmsys_exp.jobs.inference import InferJob, answer, describe, prepare, show_forecast
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.resume_overrides import apply_overrides, check_changes
from llmsys_exp.plan import Choice
from llmsys_exp.report.console import Console
from llmsys_exp.runs import record
from llmsys_exp.runs.answers import read_answers
from llmsys_exp.runs.files import read_json
from llmsys_exp.runs.lock import check_free, locked
from llmsys_exp.runs.migrate import has_manifest, read_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.resume_rules import INFERENCE_MAY_CHANGE
from llmsys_exp.runs.status import recorded


def is_inference(paths: RunPaths) -> bool:
    """Whether a run folder is one of `llmsys infer`, which trains nothing."""
    job = read_json(paths.job)
    config = job.get("config") if isinstance(job, dict) else None
    return isinstance(config, dict) and config.get("steps") == [Step.infer.name]


def resume_inference(
    paths: RunPaths, overrides: Sequence[str], *, command: Sequence[str], console: Console, verbose: bool
) -> dict[str, Any]:
    """Answer the prompts that have no answer yet, and return the manifest.

    Raises:
        UserError: for anything the user can mend; the answers that are there stay.
    """
    started = time.monotonic()
    with locked(paths.lock):
        check_free(paths.worker_lock)
        if has_manifest(paths):
            _changed(record.read_job(paths, where=f"resume={paths.folder}"), overrides)
            console.line(f"This run is complete: {len(read_answers(paths))} answers in {paths.folder}")
            return {"folder": str(paths.folder), **read_manifest(paths.manifest)}
        job = _take_up(paths, overrides, command=command, verbose=verbose)
        show_forecast(job, console)
        console.line()
        done = len(read_answers(paths))
        console.line(f"Going on after {done} answers in {paths.folder}")
        with recorded(paths):
            describe(job, paths)
            return answer(job, paths, console, None, started=started)


def _changed(stored: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Return the configuration with overrides that leave the answers as they are; refuse others."""
    before = from_plain(stored["config"])
    config = apply_overrides(before, overrides)
    problems = limit_problems(config)
    if problems:
        raise ConfigError(problems)
    check_changes(before, config, INFERENCE_MAY_CHANGE)
    return config


def _take_up(paths: RunPaths, overrides: Sequence[str], *, command: Sequence[str], verbose: bool) -> InferJob:
    """Settle the run anew with overrides that leave its answers as they would have been."""
    stored = record.read_job(paths, where=f"resume={paths.folder}")
    config = _changed(stored, overrides)
    config.resume = str(paths.folder)
    inputs = _inputs(stored["resolved"], device="cpu" if config.hardware.gpu == "cpu" else "cuda")
    run = Run(config, [Step.infer], command, overrides, verbose=verbose, adapter=inputs.adapter_folder)
    job = prepare(run, inputs=inputs)
    then = {(one["key"], str(one["value"])): Choice(**one) for one in stored["plan"].get("choices", ())}
    choices = tuple(then.get((one.key, str(one.value)), one) for one in job.choices)
    return replace(job, choices=choices)


def _inputs(resolved: dict[str, Any], *, device: str) -> Inputs:
    """Files as they were found then, by their absolute paths: relative ones began at another folder."""
    known = {one.name for one in fields(Inputs)}
    inputs = Inputs(**{key: value for key, value in resolved.items() if key in known} | {"device": device})
    files = (inputs.model_folder, inputs.prompts_file, inputs.adapter_folder)
    gone = [one for one in files if one is not None and not Path(one).exists()]
    if gone:
        raise ConfigError([UserError("A file of the run is gone", where=one) for one in gone])
    return inputs
