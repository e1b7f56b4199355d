"""One run from plan to summary: forecast, settings, then each step as a worker process.

The manifest is written last, so that a run that was stopped never looks complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Config, OnOom, Step
from llmsys_exp.dryrun.gate import pass_gate
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.inputs.find import find_model
from llmsys_exp.jobs.inference import TITLE as INFER_TITLE
from llmsys_exp.jobs.inference import run_inference
from llmsys_exp.jobs.job import (
    Job,
    Run,
    make_job,
    settle_rest,
    take_up_job,
    with_free_port,
    with_plan,
)
from llmsys_exp.jobs.quantize_gate import check_quantize
from llmsys_exp.jobs.resume import put_aside, put_back_when_refused, take_up, tell_way_on
from llmsys_exp.jobs.resume_inference import is_inference, resume_inference
from llmsys_exp.jobs.retry import Attempt, changes, next_plan
from llmsys_exp.jobs.shown import convert_weights, run_titled
from llmsys_exp.jobs.steps import check_steps
from llmsys_exp.launch.failure import OOM_GPU
from llmsys_exp.launch.nvme import drop_swap
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.plan.case_mlp import check_mlp_steps
from llmsys_exp.plan.serving_case import starts_sglang
from llmsys_exp.report.console import Console, gib
from llmsys_exp.report.pages.at_end import write_run_page
from llmsys_exp.report.plan_text import show_plan
from llmsys_exp.report.plots import draw_plots
from llmsys_exp.report.serving_text import show_serving
from llmsys_exp.report.summary import show_summary
from llmsys_exp.runs import record
from llmsys_exp.runs.answers import write_table
from llmsys_exp.runs.facts import Finished
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.folder import check_name
from llmsys_exp.runs.lock import check_free, locked
from llmsys_exp.runs.measured import memory_rows
from llmsys_exp.runs.migrate import has_manifest, read_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording, missing_evidence
from llmsys_exp.runs.status import recorded

STEP_TITLES = {
    Step.train: "Training",
    Step.export: "Writing the model",
    Step.quantize: "Quantising the model",
    Step.infer: INFER_TITLE,
    Step.parallelism: "Data, pipeline and tensor parallelism",
}


def run_steps(run: Run, console: Console) -> dict[str, Any]:
    """Plan, check, run every step, and return the manifest.

    Raises:
        UserError: for anything the user can mend; nothing then looks complete.
    """
    if list(run.steps) == [Step.infer]:
        return run_inference(run, console)
    started = time.monotonic()
    check_steps(run.steps)
    check_mlp_steps(run.config, list(run.steps))
    check_name(run.config.name)
    plan = run.keep_reasons(settle_rest(resolve(run.config, tell=_teller(console))))
    if Step.train in run.steps:
        _pass_gate(plan, console)
    if Step.quantize in run.steps:
        _foresee_quantize(plan.config, console)
    job = make_job(run, plan)
    if job.served is not None and starts_sglang(job.config):
        console.title("Forecast of the inference engine")
        show_serving(console, job.served.plan)
    console.line()
    console.line(f"Run folder: {job.paths.folder}")
    with locked(job.paths.lock), recorded(job.paths), Recording(job.paths, job.asked()) as recording:
        env, log = job.env(Step.infer), job.paths.log
        prepared = convert_weights(
            job.config, job.train.python, console, env=env, log=log, verbose=run.verbose
        )
        recording.files_made()
        return _carry_out(job, {"prepare": prepared}, console, recording, started=started)


def resume_run(
    folder: Path, overrides: Sequence[str], *, command: Sequence[str], console: Console, verbose: bool
) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, do what steps are left, and return the manifest.

    Raises:
        UserError: for anything the user can mend; the run folder is as it was then.
    """
    started = time.monotonic()
    if not folder.is_dir():
        raise UserError("There is no such run folder", where=f"resume={folder}", do="llmsys runs lists them")
    paths = RunPaths(folder)
    if is_inference(paths):
        return resume_inference(paths, overrides, command=command, console=console, verbose=verbose)
    with locked(paths.lock):
        check_free(paths.worker_lock)
        found = take_up(folder, overrides)
        # a run that was killed between its last result and its manifest has only the latter left to do
        if not found.steps and has_manifest(paths):
            console.line(f"This run is finished: {folder}")
            console.line("  Give training.max_steps or training.epochs a larger value to train on.")
            return {"folder": str(folder), **read_manifest(paths.manifest)}
        run = Run(found.config, found.steps, command, overrides, verbose=verbose)
        plan = found.keep_choices(settle_rest(resolve(found.config, tell=_teller(console))))
        if found.checkpoint is not None:
            _pass_gate(plan, console)
        console.line()
        console.line(found.describe())
        with put_back_when_refused(paths), recorded(paths):
            job = take_up_job(run, plan, paths, inputs=found.inputs)
            if found.extends:
                put_aside(paths)
            with Recording(paths, job.asked()) as recording:
                return _carry_out(job, {}, console, recording, started=started)


def _carry_out(
    job: Job, times: dict[str, float], console: Console, recording: Recording, *, started: float
) -> dict[str, Any]:
    for step in job.run.steps:
        began = time.monotonic()
        if step is Step.train:
            job = _train(job, console)
        else:
            if step is Step.quantize:
                check_quantize(job.config, source=job.paths.merged, folder=job.paths.folder, console=console)
            _run(job, step, job.command(step), STEP_TITLES[step], console)
        times[step.name] = time.monotonic() - began
    return _finish(job, {**times, "total": time.monotonic() - started}, console, recording)


def _foresee_quantize(config: Config, console: Console) -> None:
    """Refuse before training what would not fit after it, where the base is at hand."""
    folder = find_model(config)
    outputs = Path(config.paths.outputs).expanduser().absolute()
    existing = next(one for one in (outputs, *outputs.parents) if one.is_dir())
    check_quantize(config, source=Path(folder) if folder else None, folder=existing, console=console)


def _teller(console: Console) -> Callable[[str], None]:
    return lambda text: console.line(f"  {text}")


def _pass_gate(plan: Plan, console: Console) -> None:
    console.title("Forecast")
    show_plan(console, plan)
    for warning in pass_gate(plan, console):
        console.line(console.style(f"warning: {warning}", "yellow"))


def _train(job: Job, console: Console) -> Job:
    """Train, under `launcher.on_oom` again with less memory, and return the job as it ran in the end."""
    # a run that was taken up again may have had attempts before
    earlier = read_json(job.paths.attempts) if job.paths.attempts.exists() else []
    attempts: list[Attempt] = []
    while True:
        job = with_free_port(job)
        ran = job.config
        try:
            _run(job, Step.train, job.command(Step.train), STEP_TITLES[Step.train], console)
            return job
        except JobError as failure:
            if failure.kind != OOM_GPU:
                tell_way_on(failure, job.paths)
                raise
            number = len(earlier) + len(attempts) + 1
            attempts.append(Attempt(number, job.plan, failure))
            write_json(job.paths.attempts, [*earlier, *(attempt.to_dict() for attempt in attempts)])
            plan = _plan_after(job, attempts, console)
            job = with_plan(job, plan, attempt=number)
        finally:
            drop_swap(ran, job.paths.folder)


def _plan_after(job: Job, attempts: Sequence[Attempt], console: Console) -> Plan:
    """Return the plan of the next attempt; raises the last failure where there is to be none."""
    failure, launcher = attempts[-1].failure, job.config.launcher
    if launcher.on_oom is OnOom.fail:
        raise failure
    if len(attempts) > launcher.oom_retries:
        console.line(f"  no further attempt: launcher.oom_retries={launcher.oom_retries}")
        raise failure
    try:
        plan = next_plan(job.run.config, job.plan, failure)
    except UserError as error:
        console.line(f"  no further attempt: {error}")
        raise failure from error
    console.line(console.style(f"  {failure.what}", "yellow"))
    said = ", ".join(changes(job.config, plan.config))
    need = "" if plan.forecast is None else gib(plan.forecast.required_bytes)
    says = f"; the plan says that it needs {need} GiB" if need else ""
    console.line(f"  Attempt {attempts[-1].number + 1} with {said}{says}")
    return plan


def _run(job: Job, step: Step, command: list[str], title: str, console: Console) -> None:
    run_titled(
        command,
        title,
        console,
        env=job.env(step),
        log=job.paths.log,
        verbose=job.run.verbose,
        timeout_s=job.config.launcher.timeout_s,
    )


def _finish(job: Job, times: dict[str, float], console: Console, recording: Recording) -> dict[str, Any]:
    results = record.results_of(job.paths, job.run.steps)
    done = Finished(
        asked=job.asked(),
        results=results,
        memory=memory_rows(job.plan.forecast, results.get(Step.train.name, {})),
        timing_s=times,
        attempts=read_json(job.paths.attempts) if job.paths.attempts.exists() else (),
    )
    title = f"{job.config.name} ({job.paths.folder.name})"
    notes = write_table(job.paths) if Step.infer.name in results else []
    notes += draw_plots(job.paths, title=title, results=results, memory=done.memory)
    if recording.is_hashing:
        console.line("Hashing the files of the run for its record ...")
    manifest = recording.manifest(done)
    write_json(job.paths.manifest, manifest)
    notes += [*write_run_page(job.paths), *missing_evidence(manifest)]
    show_summary(console, job.paths, done, notes=notes)
    return {"folder": str(job.paths.folder), **manifest}
