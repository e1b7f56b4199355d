"""What can be trained: one module a kind of model, one line in this table."""

from __future__ import annotations

from importlib import import_module

from llmsys_exp.config.schema import ModelKind
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks.base import Task

TASKS = {
    ModelKind.causal_lm: "llmsys_exp.workers.tasks.causal_lm:CausalLm",
    ModelKind.mlp: "llmsys_exp.workers.tasks.image_classification:ImageClassification",
}


def make_task(job: Job, ranks: Ranks) -> Task:
    """Return the task of a job, its data read and checked."""
    module, _, attribute = TASKS[job.config.model.kind].partition(":")
    return getattr(import_module(module), attribute)(job, ranks)
