"""The shape of a model: from its own folder, or from the planner's table where only a shape is wanted."""

from __future__ import annotations

from typing import Any

import planner
from llmsys_exp.config.schema import Weights
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.hub import cannot_load, hub_arguments


def is_shape_alone(job: Job) -> bool:
    """Return whether the job names a row of the planner's table and no files at all."""
    model = job.config.model
    return model.weights is Weights.random and model.entry is not None and job.resolved.model_folder is None


def model_shape(job: Job) -> Any:
    """Return transformers' configuration of the job's model."""
    from transformers import AutoConfig

    if is_shape_alone(job):
        raw = dict(planner.model_config(str(job.config.model.entry)))
        return AutoConfig.for_model(raw.pop("model_type"), **raw)
    try:
        return AutoConfig.from_pretrained(job.model_source, **hub_arguments(job))
    except (OSError, ValueError) as error:
        raise cannot_load("configuration", job, error) from error
