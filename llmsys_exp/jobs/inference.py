"""A run that only answers prompts: settled and checked without a training plan, answered, recorded.

`prepare` refuses everything that can be known before a start and writes nothing; `carry_out` makes the run
folder and has the prompts answered, by a worker of its own or by one that other runs have left warm.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import with_absolute_paths
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config, Step
from llmsys_exp.inputs.dataset_info import settle_data
from llmsys_exp.inputs.find import Inputs, find_inputs
from llmsys_exp.jobs.job import Run
from llmsys_exp.jobs.serving import Served, check_gate, check_place, settle_serving
from llmsys_exp.jobs.shown import convert_weights, every_line, run_shown
from llmsys_exp.jobs.warm import Engines
from llmsys_exp.launch.environment import check_secrets, worker_env
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.interpreter import interpreter, require_engine
from llmsys_exp.launch.place import find_place
from llmsys_exp.plan import Choice
from llmsys_exp.plan.case_mlp import check_mlp_steps
from llmsys_exp.plan.checks import check_inference
from llmsys_exp.plan.resolve import settle_dtype
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.at_end import write_run_page
from llmsys_exp.report.plan_text import show_choices
from llmsys_exp.report.serving_text import show_serving
from llmsys_exp.report.summary import show_summary
from llmsys_exp.runs import record
from llmsys_exp.runs.answers import write_table
from llmsys_exp.runs.facts import Asked, Finished
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.folder import check_name, config_hash, create_run_folder
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording, missing_evidence
from llmsys_exp.runs.status import recorded

MODULE = "llmsys_exp.workers.infer"
TITLE = "Answering prompts"


@dataclass(frozen=True)
class InferJob:
    """An inference run with everything settled; `carry_out` gives it a folder."""

    run: Run
    served: Served
    choices: tuple[Choice, ...]
    inputs: Inputs
    python: str
    gpus: tuple[str, ...]

    @property
    def config(self) -> Config:
        """The configuration without `auto`."""
        return self.served.config

    @property
    def command(self) -> list[str]:
        """What starts its worker, without the run folder."""
        return [self.python, "-m", MODULE]

    def asked(self) -> Asked:
        """Return what the record tells of the job."""
        return Asked(
            config=self.config,
            choices=self.choices,
            command=self.run.command,
            overrides=self.run.overrides,
            inputs=self.inputs.to_dict(),
            python=self.python,
            gpus=self.gpus,
            env=self.env(),
            serving=self.served.plan.describe(),
            engine_python=self.served.plan.python,
            reproduces=self.run.reproduces,
        )

    def env(self) -> dict[str, str]:
        """Return the whole environment of its worker."""
        env = worker_env(self.config, python=self.python, device=self.inputs.device, ranks=1)
        return env | ({VISIBLE: ",".join(self.gpus)} if self.gpus else {})


def run_inference(run: Run, console: Console) -> dict[str, Any]:
    """Check, answer every prompt, and return the manifest.

    Raises:
        UserError: for anything the user can mend; nothing then looks complete.
    """
    job = prepare(run)
    show_forecast(job, console)
    return carry_out(job, console)


def prepare(run: Run, *, inputs: Inputs | None = None) -> InferJob:
    """Settle and check everything; nothing is written or started.

    Args:
        run: what the user asked for.
        inputs: files that are known already. None: they are looked for.

    Raises:
        UserError: for anything that would stop the run later.
    """
    config, choices = run.config, list[Choice]()
    check_name(config.name)
    check_mlp_steps(config, [Step.infer])
    check_inference(config)
    check_place(config)
    check_secrets(config)
    config = with_absolute_paths(config)
    config.steps = [Step.infer]
    settle_dtype(config, choices)
    config.data = settle_data(config.data)
    python = interpreter(config)
    require_engine(Step.infer.name, python)
    if inputs is None:
        inputs = replace(find_inputs(config, [Step.infer]), adapter_folder=run.adapter)
    gpus = find_place(config, device=inputs.device, env=os.environ).gpus
    served = settle_serving(config, inputs, python=python, gpus=gpus)
    return InferJob(run, served, (*choices, *served.choices), inputs, python, gpus)


def show_forecast(job: InferJob, console: Console) -> None:
    """Show what the engine will need and each setting; raises DoesNotFit where the gate says so."""
    console.title("Forecast")
    show_serving(console, job.served.plan, settings=False)
    show_choices(console, job.choices)
    for warning in check_gate(job.served.plan):
        console.line(console.style(f"warning: {warning}", "yellow"))


def carry_out(job: InferJob, console: Console, engines: Engines | None = None) -> dict[str, Any]:
    """Make the run folder, answer, and return the manifest; raises what the worker's failure comes to.

    With `engines`, the run is one of several: a worker may be warm already, and their table says it all.
    """
    started = time.monotonic()
    outputs = Path(job.config.paths.outputs).expanduser()
    paths = create_run_folder(outputs, job.config.name, config_hash(to_plain(job.config)))
    console.line(f"Run folder: {paths.folder}")
    with locked(paths.lock), recorded(paths):
        describe(job, paths)
        if job.run.hydra_files:
            record.write_hydra(paths, files=job.run.hydra_files, variables=job.config.launcher.env)
        return answer(job, paths, console, engines, started=started)


def describe(job: InferJob, paths: RunPaths) -> None:
    """Write job.json."""
    record.write_inference_job(
        paths,
        config=job.config,
        choices=job.choices,
        inputs=job.inputs.to_dict(),
        engine=job.served.facts(),
    )


def answer(
    job: InferJob, paths: RunPaths, console: Console, engines: Engines | None, *, started: float
) -> dict[str, Any]:
    """Have the prompts of a run folder answered that are not yet, and write its records."""
    times: dict[str, float] = {}
    with Recording(paths, job.asked()) as recording:
        times["prepare"] = convert_weights(
            job.config, job.python, console, env=job.env(), log=paths.log, verbose=job.run.verbose
        )
        recording.files_made()
        console.title(TITLE)
        began = time.monotonic()
        shown = {
            "log": paths.log,
            "on_line": every_line(console, enabled=job.run.verbose),
            "timeout_s": job.config.launcher.timeout_s,
        }
        if engines is None:
            run_shown([*job.command, str(paths.folder)], console, env=job.env(), **shown)
        else:
            engines.run(job, paths.folder, console, **shown)
        times["infer"] = time.monotonic() - began
        times["total"] = time.monotonic() - started
        done = Finished(asked=job.asked(), results=record.results_of(paths, [Step.infer]), timing_s=times)
        return _finish(paths, done, console, recording, in_sweep=engines is not None)


def _finish(
    paths: RunPaths, done: Finished, console: Console, recording: Recording, *, in_sweep: bool
) -> dict[str, Any]:
    notes = write_table(paths)
    if recording.is_hashing:
        console.line("Hashing the files of the run for its record ...")
    manifest = recording.manifest(done)
    write_json(paths.manifest, manifest)
    if in_sweep:
        for note in notes:
            console.line(console.style(f"  note: {note}", "yellow"))
    else:
        show_summary(
            console, paths, done, notes=[*notes, *write_run_page(paths), *missing_evidence(manifest)]
        )
    return {"folder": str(paths.folder), **manifest}
