"""A job made ready: plan settled, files found, engine checked, run folder written. Starts nothing.

Everything that can be wrong is looked for before the run folder exists.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import AUTO, Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.inputs import Inputs, find_inputs
from llmsys_exp.launch import Launcher, TrainJob, get_launcher
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.launch.environment import free_port, interpreter, require_engine, worker_env, worker_variables
from llmsys_exp.plan import Choice, Plan
from llmsys_exp.runs import record
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.folder import config_hash, create_run_folder
from llmsys_exp.runs.paths import RunPaths

PROMPTS_AT_ONCE = 16


@dataclass(frozen=True)
class Run:
    """What the user asked for."""

    config: Config
    steps: Sequence[Step]
    command: Sequence[str]
    overrides: Sequence[str] = ()
    hydra_files: dict[str, str] = field(default_factory=dict)
    verbose: bool = False


@dataclass(frozen=True)
class Job:
    """A run with everything settled that its steps need."""

    run: Run
    plan: Plan
    inputs: Inputs
    paths: RunPaths
    launcher: Launcher
    train: TrainJob

    @property
    def config(self) -> Config:
        """The configuration without `auto`."""
        return self.plan.config

    def command(self, step: Step) -> list[str]:
        """Return what starts a step."""
        if step is Step.train:
            return self.launcher.command(self.train)
        return [self.train.python, "-m", f"llmsys_exp.workers.{step.name}", str(self.paths.folder)]

    def env(self, step: Step) -> dict[str, str]:
        """Return the whole environment of a step."""
        if step is Step.train:
            ranks, extra = self.inputs.world_size, self.launcher.env(self.train)
        else:
            ranks, extra = 1, {}
        env = worker_env(self.config, python=self.train.python, device=self.inputs.device, ranks=ranks)
        return {**env, **extra}


def settle_rest(plan: Plan) -> Plan:
    """Choose what depends on how a job is run and not on memory."""
    config, choices = deepcopy(plan.config), list(plan.choices)
    if config.launcher.name == AUTO:
        config.launcher.name = "deepspeed"
        choices.append(Choice("launcher.name", "deepspeed", "starts any number of ranks", given=False))
    if config.inference.batch_size == AUTO:
        config.inference.batch_size = PROMPTS_AT_ONCE
        reason = "keeps the processor busy; raise it on a large GPU"
        choices.append(Choice("inference.batch_size", PROMPTS_AT_ONCE, reason, given=False))
    return replace(plan, config=config, choices=tuple(choices))


def check_steps(steps: Sequence[Step]) -> None:
    """Refuse lists of steps that cannot be run one after the other.

    Raises:
        UserError: naming the step.
    """
    if not steps:
        raise UserError("steps is empty", do="Name at least one of train, export, infer")
    if Step.export in steps and Step.train not in steps:
        raise UserError(
            "The step export has nothing to merge without the step train",
            where="steps",
            do="Add train, or merge a finished run with `llmsys export RUN_FOLDER`",
        )
    if len(set(steps)) != len(steps):
        raise UserError("A step is named twice", where="steps", do="Name each step once")


def make_job(run: Run, plan: Plan) -> Job:
    """Check everything, then create the run folder with all that describes the job.

    Raises:
        UserError: for anything that would stop the job later; no folder is left then.
    """
    config = plan.config
    _check_nodes(config)
    python = interpreter(config)
    for step in run.steps:
        require_engine(step.name, python)
    inputs = find_inputs(config, list(run.steps))
    launcher = get_launcher(config.launcher.name)
    ranks = config.hardware.gpus_per_node
    train = TrainJob(Path(), python=python, device=inputs.device, ranks=ranks, port=free_port())
    launcher.command(train)  # a launcher that refuses the job must do so before there is a folder
    outputs = Path(config.paths.outputs).expanduser()
    paths = create_run_folder(outputs, config.name, config_hash(to_plain(config)))
    job = Job(run, plan, inputs, paths, launcher, replace(train, folder=paths.folder))
    try:
        _describe(job)
    except UserError:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    return job


def _check_nodes(config: Config) -> None:
    if config.hardware.nodes > 1:
        raise UserError(
            f"This job spans {config.hardware.nodes} machines, and llmsys starts jobs on one",
            where="hardware.nodes",
            do="Set hardware.nodes=1; `llmsys plan` answers for any number",
        )


def _describe(job: Job) -> None:
    config, inputs = job.config, job.inputs
    record.write_job(job.paths, plan=job.plan, inputs=inputs.to_dict())
    if job.run.hydra_files:
        record.write_hydra(job.paths, files=job.run.hydra_files)
    if Step.train not in job.run.steps:
        return
    write_json(job.paths.ds_config, ds_config(config, world_size=inputs.world_size, device=inputs.device))
    variables = worker_variables(
        config, os.environ, python=job.train.python, device=inputs.device, ranks=inputs.world_size
    )
    variables.update(job.launcher.env(job.train))
    record.write_launch_script(job.paths, command=job.command(Step.train), variables=variables)
