"""Generate answers for a batch of prompts with a transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.data.render import end_of_turn_id


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked; temperature 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


def end_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer, by the word of model, tokenizer and chat template."""
    stated = getattr(model.generation_config, "eos_token_id", None)
    ids = list(stated) if isinstance(stated, (list, tuple)) else [stated]
    ids += [tokenizer.eos_token_id, end_of_turn_id(tokenizer)]
    return sorted({one for one in ids if one is not None})


def generate_batch(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    synced_ranks: bool = False,
) -> list[list[int]]:
    """Return the new tokens for each prompt, without the token that ended it.

    Args:
        model: A transformers or peft model.
        tokenizer: Gives the padding and end tokens.
        prompts: Token ids.
        sampling: How to pick tokens.
        synced_ranks: Keep stepping until all ranks are done, as sharded weights need every rank.
    """
    import torch

    device = next(model.parameters()).device
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(one)) + list(one) for one in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=device)
    ends = end_token_ids(model, tokenizer)
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=_generation_config(sampling, pad=pad, ends=ends),
            synced_gpus=synced_ranks,
        )
    return [_until(row, {*ends}) for row in output[:, width:].tolist()]


def _generation_config(sampling: Sampling, *, pad: int, ends: list[int]) -> Any:
    from transformers import GenerationConfig

    picks = sampling.temperature > 0
    # spelt out, as what is left open is filled in from the model's own habits
    how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=picks,
        **(how if picks else {}),
        num_beams=1,
        repetition_penalty=1.0,
        use_cache=True,
        pad_token_id=pad,
        eos_token_id=ends or None,
    )


def _until(ids: list[int], ends: set[int]) -> list[int]:
    stop = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return ids[:stop]
