"""The tokenizer of a job, able to pad, and no larger than its model."""

from __future__ import annotations

from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.hub import cannot_load, hub_arguments


def load_tokenizer(job: Job, *, source: str | None = None) -> Any:
    """Load the tokenizer and see to it that it can pad."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source or job.model_source, **hub_arguments(job))
    except (OSError, ValueError) as error:
        raise cannot_load("tokenizer", job, error) from error
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
            where="model.path",
            why="Their files do not belong together",
            do="Give a folder that holds both from one source",
        )
