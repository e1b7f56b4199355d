"""Generate answers for a batch of prompts with a transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.data.render import end_of_turn_id

NO_END = -1
"""Stands for "no token ends an answer": None would be filled in from the model's own habits."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked; temperature 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    ignore_eos: bool = False
    """Go on to max_new_tokens whatever the model says."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end an answer. Empty: as model and tokenizer say."""


@dataclass(frozen=True)
class Own:
    """What one prompt of a batch has for itself."""

    seed: int
    max_new_tokens: int


def end_token_ids(generation_config: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer, by the word of model, tokenizer and chat template."""
    stated = getattr(generation_config, "eos_token_id", None)
    ids = list(stated) if isinstance(stated, (list, tuple)) else [stated]
    ids += [tokenizer.eos_token_id, end_of_turn_id(tokenizer)]
    return sorted({one for one in ids if one is not None})


def generate_batch(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    own: Sequence[Own] | None = None,
    streamer: Any = None,
    synced_ranks: bool = False,
) -> list[list[int]]:
    """Return the new tokens for each prompt, without the token that ended it.

    Args:
        model: A transformers or peft model.
        tokenizer: Gives the padding and end tokens.
        prompts: Token ids.
        sampling: How to pick tokens.
        own: Seed and limit of each prompt, which then is answered the same whatever else is in its batch.
            None: the random state of torch, and the limit of `sampling`.
        streamer: Gets the tokens of each step.
        synced_ranks: Keep stepping until all ranks are done, as sharded weights need every rank.
    """
    import torch

    device = next(model.parameters()).device
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(one)) + list(one) for one in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=device)
    ends = ends_of(sampling, model, tokenizer)
    seeded = own is not None and sampling.temperature > 0
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=generation_config(sampling, pad=pad, ends=ends, picks=not seeded),
            logits_processor=_seeded_picks(sampling, own, device) if seeded else None,
            stopping_criteria=_row_limits(own, width) if own else None,
            streamer=streamer,
            synced_gpus=synced_ranks,
        )
    limits = [one.max_new_tokens for one in own] if own else [sampling.max_new_tokens] * len(prompts)
    found = zip(output[:, width:].tolist(), limits, strict=True)
    return [_until(row[:limit], {*ends}) for row, limit in found]


def ends_of(sampling: Sampling, model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer, none where the end is not listened to."""
    if sampling.ignore_eos:
        return []
    return list(sampling.end_ids) or end_token_ids(model.generation_config, tokenizer)


def generation_config(sampling: Sampling, *, pad: int, ends: Sequence[int], picks: bool = True) -> Any:
    """Return what transformers is told; `picks` is off where tokens are picked by a logits processor."""
    from transformers import GenerationConfig

    picks = picks and sampling.temperature > 0
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
        eos_token_id=list(ends) or [NO_END],
    )


def _row_limits(own: Sequence[Own], prompt_width: int) -> Any:
    """Return a criterion that ends each row at its own limit."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class RowLimits(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            made = input_ids.shape[1] - prompt_width
            done = [made >= one.max_new_tokens for one in own]
            return torch.tensor(done, dtype=torch.bool, device=input_ids.device)

    return StoppingCriteriaList([RowLimits()])


def _seeded_picks(sampling: Sampling, own: Sequence[Own], device: Any) -> Any:
    """Return processors after which the likeliest token is a draw from each row's own generator.

    Adding Gumbel noise and taking the largest draws from the distribution, and leaves `generate` nothing to
    draw: its one random state is shared by all rows of a batch, so an answer would hang on its neighbours.
    """
    import torch
    from transformers import (
        LogitsProcessor,
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    generators = [torch.Generator(device=device).manual_seed(one.seed) for one in own]

    class Gumbel(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            noise = torch.empty_like(scores, dtype=torch.float32)
            for row, generator in zip(noise, generators, strict=True):
                row.exponential_(generator=generator)
            return scores.float() - noise.log()

    listed: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k:
        listed.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        listed.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList([*listed, Gumbel()])


def _until(ids: list[int], ends: set[int]) -> list[int]:
    stop = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return ids[:stop]
