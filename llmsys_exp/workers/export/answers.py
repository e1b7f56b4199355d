"""What a model answers to a few fixed texts, and how far two models are apart in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmsys_exp.config.schema import Dtype

TEXTS = ("Name the capital of France.", "Give three colours.\n\nOne word each.")
TOLERANCE = {Dtype.fp32: 1e-4, Dtype.bf16: 5e-2, Dtype.fp16: 1e-2}
"""Largest difference of a logit between models that should agree, as a share of the largest logit."""


def logits_of(model: Any, tokenizer: Any) -> list[Any]:
    """Return the logits at every position of the texts, in fp32 on the host."""
    import torch

    device = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for text in TEXTS:
            ids = torch.tensor([tokenizer(text)["input_ids"]], device=device)
            found.append(model(input_ids=ids, use_cache=False).logits.float().cpu())
    return found


def largest(logits: Sequence[Any]) -> float:
    """Return the largest absolute logit; NaN where one is NaN."""
    import torch

    return float(torch.stack([one.abs().max() for one in logits]).max())


def difference(wanted: Sequence[Any], got: Sequence[Any]) -> float:
    """Return the largest difference as a share of the largest logit; NaN where a logit is NaN."""
    return largest([a - b for a, b in zip(wanted, got, strict=True)]) / largest(wanted)
