"""Which model a run asks, and what its files say of context and ends before a weight is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.hub import hub_arguments
from llmsys_exp.workers.models.shape import model_shape


def model_source(job: Job) -> str:
    """Return the folder of the run's own merged model, else what the job names."""
    return str(job.paths.merged) if job.paths.merged.is_dir() else job.model_source


def is_trained(job: Job, source: str) -> bool:
    """Whether a run of ours has trained the model: an adapter, or weights that lie in its run folder."""
    return job.resolved.adapter_folder is not None or RunPaths(Path(source).parent).job.is_file()


def stated_ends(job: Job, source: str) -> Any:
    """Return a model's settings for generation, else its configuration: both may name end tokens."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(source, **hub_arguments(job))
    except (OSError, ValueError):  # it has none of its own
        return _configuration(job, source)


def context_of(job: Job, source: str) -> int | None:
    """Return the longest prompt and answer together, as the engine will be started; None: nothing says it."""
    asked = ((job.serving or {}).get("arguments") or {}).get("context_length")
    if isinstance(asked, int):
        return asked
    return getattr(_configuration(job, source), "max_position_embeddings", None)


def _configuration(job: Job, source: str) -> Any:
    from transformers import AutoConfig

    try:
        if source == job.model_source:
            return model_shape(job).get_text_config()
        return AutoConfig.from_pretrained(source, **hub_arguments(job)).get_text_config()
    except (OSError, ValueError, UserError):  # of a server, whose files need not be here
        return None
