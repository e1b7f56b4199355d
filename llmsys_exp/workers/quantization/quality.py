"""What a model is worth before and after: perplexity on rows, and an answer to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmsys_exp.errors import JobError
from llmsys_exp.workers.data.example import Example

ANSWER_TOKENS = 24


def quality(model: Any, tokenizer: Any, rows: Sequence[Example]) -> dict[str, Any]:
    """Return loss and perplexity over the tokens that are learnt, and a greedy answer to the first row.

    Raises:
        JobError: when a logit is NaN or infinite.
    """
    total, count = 0.0, 0
    for row in rows:
        lost, tokens = _loss(model, row)
        total, count = total + lost, count + tokens
    loss = total / count
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "answer": answer(model, tokenizer, rows[0]),
    }


def answer(model: Any, tokenizer: Any, row: Example) -> str:
    """Return what the model says to a row's question."""
    import torch

    prompt = torch.tensor([row.prompt_ids or tuple(row.ids[:1].tolist())], device=_device(model))
    with torch.no_grad():
        ids = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=ANSWER_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
    return tokenizer.decode(ids[0, prompt.shape[1] :], skip_special_tokens=True)


def _loss(model: Any, row: Example) -> tuple[float, int]:
    import torch

    device = _device(model)
    ids = torch.as_tensor(row.ids.astype("int64"), device=device)[None]
    learnt = torch.as_tensor(row.learnt[1:], device=device)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    if not bool(logits.isfinite().all()):
        raise JobError("The model answers with NaN or infinite logits", kind="quantize")
    losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    return float(losses[learnt].sum()), int(learnt.sum())


def _device(model: Any) -> Any:
    return next(one.device for one in model.parameters())
