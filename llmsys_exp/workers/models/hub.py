"""What every call to transformers' loaders shares: revision, trust, and a message when loading fails."""

from __future__ import annotations

from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job


def hub_arguments(job: Job) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that say which files, and whether their code may run."""
    return {
        "revision": job.config.model.revision or "main",
        "trust_remote_code": job.config.model.trust_remote_code,
    }


def cannot_load(what: str, job: Job, error: Exception) -> UserError:
    """Return the message for a model or tokenizer that transformers refuses."""
    reason = (str(error).splitlines() or [""])[0]
    return UserError(
        f"The {what} cannot be loaded: {reason}",
        where=f"model.id={job.config.model.id}, from {job.model_source}",
        do="Set model.path to a folder with config.json, weights and tokenizer",
    )
