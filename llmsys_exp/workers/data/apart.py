"""Does a model keep packed examples apart? Asked of the model itself, before it is trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.example import Example

LENGTH = 8
ROWS = 2
TOLERATED = 0.05
"""Largest change of a later example's logits, as a share of the change where examples do see one another.

Not 0: experts and 16-bit sums round differently in other company.
"""
TOLERATED_8BIT = 0.25
"""The same over an 8-bit base: which columns bitsandbytes multiplies in 16 bit (`int8_vectorwise_quant`)
hangs on all tokens of a batch, packed or not. Seen: 0.08 with random weights."""


def check_kept_apart(model: Any, *, varlen: bool = False) -> None:
    """Refuse to pack for a model in which an example sees the ones before it in its sequence.

    transformers keeps them apart for models that build their masks with `masking_utils`; others look past the
    border without a word. Every rank must call this, as shards are gathered. Costs three passes of 32 tokens.

    Raises:
        UserError: when the second example's logits hang on the first.
    """
    mixed = _change(model, packed=False, varlen=False)
    apart = _change(model, packed=True, varlen=varlen)
    # not "greater": a NaN must fail as well
    tolerated = TOLERATED_8BIT if _is_8bit(model) else TOLERATED
    if not apart <= tolerated * mixed:
        raise UserError(
            f"{type(model).__name__} does not keep packed examples apart",
            where="data.packing=true",
            why=f"Another example before it moves logits by {apart:.2g}, without borders by {mixed:.2g}",
            do="Set data.packing=false; data.group_by_length=true also saves padding",
        )


def _is_8bit(model: Any) -> bool:
    return any(type(module).__name__ == "Linear8bitLt" for module in model.modules())


def _change(model: Any, *, packed: bool, varlen: bool) -> float:
    """Return by how much the second example's logits change at most when the first one changes."""
    one, other = (_logits(model, first=first, packed=packed, varlen=varlen) for first in (11, 3))
    return float((one - other).abs().max())


def _logits(model: Any, *, first: int, packed: bool, varlen: bool) -> Any:
    import torch

    batch = collate([_pair(first, packed=packed)] * ROWS, pad_id=0, varlen=varlen)
    del batch["labels"]
    device = next(model.parameters()).device
    moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(**moved, use_cache=False).logits[:, LENGTH:].float()
    finally:
        model.train(was_training)


def _pair(first: int, *, packed: bool) -> Example:
    """Two examples in a sequence; `first` tells the tokens of the first one."""
    ids = np.concatenate([first + np.arange(LENGTH), 20 + np.arange(LENGTH)]).astype(np.int32)
    return Example(ids, np.zeros(len(ids), dtype=np.bool_), lengths=(LENGTH, LENGTH) if packed else ())
