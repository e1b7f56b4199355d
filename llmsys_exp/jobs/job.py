"""A job made ready: plan settled, files found, engine checked, run folder written. Starts nothing.

Everything that can be wrong is looked for before the run folder exists.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import with_absolute_paths
from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import AUTO, Config, Step
from llmsys_exp.errors import UserError
from llmsys_exp.inputs.dataset_info import settle_data
from llmsys_exp.inputs.find import Inputs, find_inputs
from llmsys_exp.jobs.parallelism import check_parallelism
from llmsys_exp.jobs.retry import keeps_checkpoints
from llmsys_exp.jobs.serving import Served, check_gate, settle_serving
from llmsys_exp.launch import Launcher, TrainJob, get_launcher
from llmsys_exp.launch.base import TRAIN_MODULE
from llmsys_exp.launch.deepspeed import ENV_FILE
from llmsys_exp.launch.ds_config import ds_config
from llmsys_exp.launch.environment import (
    check_secrets,
    variables_for_others,
    worker_env,
    worker_variables,
)
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.interpreter import interpreter, require_engine, require_mirrors
from llmsys_exp.launch.nvme import keep_apart, require_nvme, swap_folder
from llmsys_exp.launch.place import choose_launcher, find_place
from llmsys_exp.launch.ports import free_port, is_free
from llmsys_exp.plan import Choice, Plan
from llmsys_exp.runs import record
from llmsys_exp.runs.facts import Asked
from llmsys_exp.runs.files import write_json
from llmsys_exp.runs.folder import config_hash, create_run_folder
from llmsys_exp.runs.paths import RunPaths

RANK_MODULES = {Step.train: TRAIN_MODULE, Step.parallelism: "llmsys_exp.workers.parallelism"}
"""Steps that a launcher starts, a process a rank."""


@dataclass(frozen=True)
class Run:
    """What the user asked for."""

    config: Config
    steps: Sequence[Step]
    command: Sequence[str]
    overrides: Sequence[str] = ()
    hydra_files: dict[str, str] = field(default_factory=dict)
    verbose: bool = False
    adapter: str | None = None
    """Folder of the adapter that is served over the model (`llmsys infer run=`)."""
    reproduces: str = ""
    """Id of the run that this one repeats."""
    choices: Sequence[Choice] = ()
    """What was chosen for that run: its values are settings now, and keep their reasons."""

    def keep_reasons(self, plan: Plan) -> Plan:
        """Return a plan in which values that were chosen before keep the reasons they were chosen for."""
        return keep_reasons(plan, self.choices)


def keep_reasons(plan: Plan, choices: Sequence[Choice]) -> Plan:
    """Return a plan of settled values with the reasons of those choices that gave the same values."""
    then = {(one.key, one.value): one for one in choices}
    return replace(plan, choices=tuple(then.get((one.key, one.value), one) for one in plan.choices))


@dataclass(frozen=True)
class Job:
    """A run with everything settled that its steps need."""

    run: Run
    plan: Plan
    inputs: Inputs
    paths: RunPaths
    launcher: Launcher
    train: TrainJob
    served: Served | None = None
    """The engine of the step `infer`."""

    @property
    def engine(self) -> dict[str, Any]:
        """What job.json says of the engine that answers prompts."""
        return {"serving": None, "engine_key": ""} if self.served is None else self.served.facts()

    @property
    def config(self) -> Config:
        """The configuration without `auto`."""
        return self.plan.config

    def command(self, step: Step) -> list[str]:
        """Return what starts a step."""
        if step in RANK_MODULES:
            return self.launcher.command(replace(self.train, module=RANK_MODULES[step]))
        return [self.train.python, "-m", f"llmsys_exp.workers.{step.name}", str(self.paths.folder)]

    def env(self, step: Step) -> dict[str, str]:
        """Return the whole environment of a step."""
        if step in RANK_MODULES:
            ranks, extra, hides = self.train.ranks, self.launcher.env(self.train), self.launcher.hides
        else:
            ranks, hides = 1, ()
            extra = {VISIBLE: ",".join(self.train.gpus)} if self.train.gpus else {}
        env = worker_env(self.config, python=self.train.python, device=self.inputs.device, ranks=ranks)
        return {**{key: value for key, value in env.items() if key not in hides}, **extra}

    def asked(self) -> Asked:
        """Return what the record tells of the job."""
        served, step = self.served, self.run.steps[0] if self.run.steps else Step.train
        return Asked(
            config=self.config,
            choices=self.plan.choices,
            command=self.run.command,
            overrides=self.run.overrides,
            inputs=self.inputs.to_dict(),
            python=self.train.python,
            gpus=self.train.gpus,
            env=self.env(step),
            plan=self.plan,
            serving=None if served is None else served.plan.describe(),
            engine_python=None if served is None else served.plan.python,
            reproduces=self.run.reproduces,
        )


def settle_rest(plan: Plan) -> Plan:
    """Choose what depends on how a job is run and not on memory."""
    config, choices = with_absolute_paths(plan.config), list(plan.choices)
    config.data = settle_data(config.data)
    if config.launcher.name == AUTO:
        config.launcher.name, reason = choose_launcher(config)
        choices.append(Choice("launcher.name", config.launcher.name, reason, given=False))
    return replace(plan, config=config, choices=tuple(choices))


def make_job(run: Run, plan: Plan) -> Job:
    """Check everything, then create the run folder with all that describes the job.

    Raises:
        UserError: for anything that would stop the job later; no folder is left then.
    """
    config = plan.config
    ready = _ready(run, plan)
    outputs = Path(config.paths.outputs).expanduser()
    paths = create_run_folder(outputs, config.name, config_hash(to_plain(config)))
    job = _placed(ready, paths)
    try:
        _describe(job)
    except UserError:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    return job


def take_up_job(run: Run, plan: Plan, paths: RunPaths, *, inputs: Inputs) -> Job:
    """Check everything, then describe the job anew in the folder of a run that goes on.

    Raises:
        UserError: for anything that would stop the job later; the folder is as it was then.
    """
    job = _placed(_ready(run, plan, inputs), paths)
    _describe(job)
    return job


def _ready(run: Run, plan: Plan, inputs: Inputs | None = None) -> Job:
    """Return a job that has no folder yet; its files are looked for unless they are known."""
    config = plan.config
    check_secrets(config)
    python = interpreter(config)
    for step in run.steps:
        require_engine(step.name, python)
    if Step.train in run.steps:
        require_mirrors(config, python)
        require_nvme(config, plan.forecast, python, {**os.environ, **config.launcher.env})
    if Step.parallelism in run.steps:
        check_parallelism(config)
    inputs = find_inputs(config, list(run.steps)) if inputs is None else inputs
    launcher = get_launcher(config.launcher.name)
    train = _train_job(config, inputs, python)
    launcher.command(train)  # a launcher that refuses the job must do so before there is a folder
    served = None
    if Step.infer in run.steps:
        # what is served lies where only the run folder's own name is missing yet
        model = Path(RunPaths(Path()).merged) if Step.export in run.steps else None
        served = settle_serving(config, inputs, python=python, gpus=train.gpus, model=model)
        check_gate(served.plan)
        plan = replace(plan, config=served.config, choices=(*plan.choices, *served.choices))
    return Job(run, plan, inputs, RunPaths(train.folder), launcher, train, served)


def _placed(job: Job, paths: RunPaths) -> Job:
    return replace(job, paths=paths, train=replace(job.train, folder=paths.folder))


def _train_job(config: Config, inputs: Inputs, python: str) -> TrainJob:
    ranks, device = config.hardware.gpus_per_node, inputs.device
    place = find_place(config, device=device, env=os.environ)
    others: dict[str, str] = {}
    if place.nodes.is_remote:
        others = variables_for_others(config, os.environ, python=python, device=device, ranks=ranks)
    return TrainJob(
        Path(),
        python=python,
        device=device,
        ranks=ranks,
        port=place.port,
        gpus=place.gpus,
        nodes=place.nodes,
        variables=others,
    )


def with_free_port(job: Job) -> Job:
    """Move the ranks' meeting place when somebody else took the port since the job was written."""
    if job.config.launcher.master_port is not None or is_free(job.train.port):
        return job
    return replace(job, train=replace(job.train, port=free_port()))


def with_plan(job: Job, plan: Plan, *, attempt: int) -> Job:
    """Describe the job anew for another attempt; the files of the one before are kept beside the new ones."""
    for path in (job.paths.job, job.paths.ds_config):
        record.keep_attempt(path, attempt)
    if not keeps_checkpoints(job.config, plan.config):
        record.keep_attempt(job.paths.checkpoints, attempt)
    job = with_free_port(replace(job, plan=plan))
    record.write_job(job.paths, plan=job.plan, inputs=job.inputs.to_dict(), engine=job.engine)
    _describe_training(job)
    return job


def _describe(job: Job) -> None:
    record.write_job(job.paths, plan=job.plan, inputs=job.inputs.to_dict(), engine=job.engine)
    if job.run.hydra_files:
        record.write_hydra(job.paths, files=job.run.hydra_files, variables=job.config.launcher.env)
    if Step.train in job.run.steps:
        _describe_training(job)


def _describe_training(job: Job) -> None:
    config, inputs = job.config, job.inputs
    settings = ds_config(config, world_size=inputs.world_size, device=inputs.device)
    write_json(job.paths.ds_config, keep_apart(settings, swap_folder(config, job.paths.folder)))
    train, launcher = job.train, job.launcher
    variables = worker_variables(
        config, os.environ, python=train.python, device=inputs.device, ranks=train.ranks
    )
    hides = [key for key in launcher.hides if key not in launcher.env(train)]
    variables = {key: value for key, value in variables.items() if key not in hides}
    record.write_launch_script(
        job.paths, command=job.command(Step.train), variables=variables | launcher.env(train), hides=hides
    )
    if train.nodes.is_remote:
        record.write_env_file(job.paths.folder / ENV_FILE, variables=train.variables)
