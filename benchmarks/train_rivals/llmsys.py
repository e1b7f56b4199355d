"""(d) llmsys at the settings that the rivals have: configuration, plan, run folder and worker as in a real run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.train_rivals.job import Job

EQUAL = ("zero.stage=2", "training.gradient_checkpointing=false", "training.expandable_segments=true")


def overrides(job: Job, *more: str) -> list[str]:
    """Return the command line of the job."""
    hardware = "h200" if job.device == "cuda" else "cpu"
    entry = [] if job.model == "tiny" else [f"model.entry={job.model}"]
    lora = [f"method.lora.r={job.lora_rank}", f"method.lora.alpha={job.lora_alpha}"]
    return [
        *("name=train_speed", f"seed={job.seed}", f"hardware={hardware}", "model=local", *entry),
        *(f"model.path={job.model_folder}", "data=alpaca", f"data.train={job.rows_file}"),
        *(f"data.max_length={job.max_length}", f"method={job.method}", *lora, "data.cache=false"),
        *("training.grad_accum=1", f"training.micro_batch={job.micro_batch}"),
        *(f"training.learning_rate={job.learning_rate}", "training.scheduler=constant"),
        *("training.warmup_ratio=0", f"training.max_steps={job.max_steps}", f"training.dtype={job.dtype}"),
        *("training.evaluate=false", f"training.log_every={job.log_every}"),
        *("training.epochs=100", "offload.optimizer=none", "offload.param=none"),
        *(f"paths.outputs={Path(job.work) / 'runs'}", "launcher=local", *more),
    ]


def ds_config_of(job: Job) -> dict[str, Any]:
    """What llmsys generates for DeepSpeed; all rivals get the same."""
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.launch.ds_config import ds_config
    from llmsys_exp.plan import resolve

    config = resolve(compose_config(overrides(job, *equal(job)))).config
    return ds_config(config, world_size=1, device=job.device)


def equal(job: Job) -> tuple[str, ...]:
    """Settings that the rivals have too."""
    return EQUAL if job.device == "cuda" else EQUAL[:2]


def prepare(job: Job) -> None:
    """Make the run folder and take over its environment."""
    start(job, *equal(job))


def start(job: Job, *more: str) -> None:
    """Plan, write the run folder, and set the worker's command line and environment in this process."""
    from llmsys_exp.config.compose import compose_config
    from llmsys_exp.config.schema import Step
    from llmsys_exp.jobs.job import Run, make_job, settle_rest
    from llmsys_exp.plan import resolve

    run = Run(compose_config(overrides(job, *more)), [Step.train], command=[])
    made = make_job(run, settle_rest(resolve(run.config)))
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.update(made.env(Step.train))
    if threads:  # as many as the rivals have
        os.environ["OMP_NUM_THREADS"] = threads
    sys.argv = ["train", str(made.paths.folder)]


def train(job: Job) -> None:
    """Run the training worker."""
    from llmsys_exp.workers import train as worker

    worker.main()
