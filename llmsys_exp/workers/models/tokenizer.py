"""The tokenizer of a job, able to pad, and no larger than its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.hub import cannot_load, hub_arguments
from llmsys_exp.workers.models.shape import is_shape_alone
from llmsys_exp.workers.models.standin import standin_tokenizer

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_tokenizer(job: Job, *, source: str | None = None) -> Any:
    """Load the tokenizer and see to it that it can pad.

    That of `source`, a finished model; else that of `model.tokenizer`; else the model's own. Random weights
    may come without one and then get a stand-in.
    """
    own = source in (None, job.model_source)
    if own and job.config.model.tokenizer is None and _has_none(job):
        return standin_tokenizer(job)
    tokenizer = _load(job, source if not own else job.config.model.tokenizer or job.model_source)
    if tokenizer.pad_token_id is None:
        # padding is masked everywhere, so any token does
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with more tokens than the model knows."""
    known = model.config.get_text_config().vocab_size
    if len(tokenizer) > known:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, the model knows {known}",
            where="model.path and model.tokenizer",
            why="Their files do not belong together",
            do="Give a folder that holds both from one source",
        )


def _load(job: Job, source: Any) -> Any:
    from transformers import AutoTokenizer

    arguments = hub_arguments(job)
    if source != job.model_source:
        del arguments["revision"]  # of the model's repository
    folder = Path(source).expanduser()
    try:
        return AutoTokenizer.from_pretrained(str(folder), **arguments)
    except (OSError, ValueError) as error:
        if folder.is_dir() and not any((folder / one).is_file() for one in FILES):
            raise UserError(
                "The model folder has no tokenizer",
                where=str(folder),
                why=f"None of {', '.join(FILES)} is there",
                do="Copy the tokenizer's files into it, or name a folder that has them with model.tokenizer",
            ) from None
        raise cannot_load("tokenizer", job, error) from error


def _has_none(job: Job) -> bool:
    folder = job.resolved.model_folder
    if job.config.model.weights is not Weights.random:
        return False
    return is_shape_alone(job) or (folder is not None and not any((folder / one).is_file() for one in FILES))
