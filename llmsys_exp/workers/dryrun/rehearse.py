"""Load, engine start and a few steps of one rank, by the functions of the training worker."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from llmsys_exp.errors import JobError
from llmsys_exp.workers import events
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.dryrun.group import apply_every_update, join_alone
from llmsys_exp.workers.dryrun.marks import PEAKS, Marks
from llmsys_exp.workers.dryrun.task import RandomTokens
from llmsys_exp.workers.files import write_json
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.ranks import Ranks, limit_memory, quieten, seed_everything
from llmsys_exp.workers.training import oom
from llmsys_exp.workers.training.engine import check_batch_sizes, start_engine
from llmsys_exp.workers.training.loop import Trainer
from llmsys_exp.workers.training.memory import peak_rss_bytes

RESULT = "dryrun"
DEFAULT_STEPS = 3
"""The first makes optimizer state, the second prefetches as later ones do, the third shows that it lasts."""


@dataclass(frozen=True)
class Asked:
    """What is to be found out.

    Attributes:
        rank: which rank of the job is played.
        limit_bytes: what the allocator may take; None: all that there is.
        steps: optimizer steps.
    """

    rank: int = 0
    limit_bytes: int | None = None
    steps: int = DEFAULT_STEPS


def rehearse(job: Job) -> None:
    """Play one rank and write its result; running out of memory is a result too."""
    asked = Asked(**json.loads(job.paths.dry_run.read_text(encoding="utf-8")))
    began = time.monotonic()
    ranks = join_alone(job, asked.rank)
    quieten()
    seed_everything(job.config.seed)
    limited = ranks.device.type == "cuda" and asked.limit_bytes is not None
    if limited:
        limit_memory(ranks.device, asked.limit_bytes or 0)
    marks = Marks(ranks.device)
    ending: dict[str, Any] = {"status": "ok", "oom": None}
    try:
        ending |= {"step_s": _play(job, ranks, marks, asked.steps)}
    except Exception as error:
        if oom.kind_of(error) is None:
            raise
        ending = {"status": "oom", "oom": oom.explain(error)[1], "step_s": []}
    result = {
        **ending,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "device": _name_of(ranks.device),
        "limit_bytes": asked.limit_bytes if limited else None,
        "phases": marks.phases,
        **{key: marks.highest(key) for key in PEAKS},
        "host": {"peak_rss_bytes": peak_rss_bytes(), "pinned_bytes": _pinned_bytes(ranks.device)},
        "seconds": round(time.monotonic() - began, 3),
    }
    job.paths.results.mkdir(exist_ok=True)
    write_json(job.paths.result(RESULT), result)


def _play(job: Job, ranks: Ranks, marks: Marks, steps: int) -> list[float]:
    """Build the model, start the engine, train; return the seconds of each step."""
    task = RandomTokens(job, ranks, after_forward=lambda: marks.end("forward"))
    order = Order(
        count=len(task.examples),
        micro_batch=settled(job.config.training.micro_batch, "training.micro_batch"),
        grad_accum=settled(job.config.training.grad_accum, "training.grad_accum"),
        world_size=ranks.world_size,
        seed=job.config.seed,
    )
    ds_config = json.loads(job.paths.ds_config.read_text(encoding="utf-8"))
    check_batch_sizes(ds_config, order)
    events.phase("load model")
    model = task.build()
    marks.end("load")
    events.phase("start engine")
    engine = start_engine(model, ds_config, job.config.training, steps=steps)
    del model
    marks.end("engine start")
    apply_every_update(engine.optimizer)
    events.phase("train")
    _watch(engine, marks)
    seconds = []
    for report in Trainer(engine, task, order, ranks=ranks, memory=marks, emulated=True).steps(0, steps):
        if not report.applied:
            raise JobError(
                f"DeepSpeed left out the update of step {report.step}",
                kind="no_update",
                do="Use tier formula: this version of DeepSpeed looks for overflow in its own way",
            )
        seconds.append(round(report.seconds, 4))
        events.progress("steps", report.step, steps, unit="step")
    return seconds


def _watch(engine: Any, marks: Marks) -> None:
    """Mark the end of each backward pass and of each update."""
    backward, step = engine.backward, engine.step

    def marked_backward(*given: Any, **named: Any) -> Any:
        result = backward(*given, **named)
        marks.end("backward")
        return result

    def marked_step(*given: Any, **named: Any) -> Any:
        does_work = engine.is_gradient_accumulation_boundary()
        result = step(*given, **named)
        if does_work:
            marks.end("step")
        return result

    engine.backward, engine.step = marked_backward, marked_step


def _name_of(device: Any) -> str:
    if device.type == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device)


def _pinned_bytes(device: Any) -> int | None:
    """Return the most page-locked memory that torch held; None where this torch does not tell."""
    import torch

    if device.type == "cpu":
        return 0
    told = getattr(torch.cuda, "host_memory_stats", None)
    if told is None:
        return None
    figures = told()
    return figures.get("allocated_bytes.peak", figures.get("allocated_bytes.all.peak"))
