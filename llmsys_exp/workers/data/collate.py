"""Batches: examples padded to one width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmsys_exp.workers.data.encode import IGNORED, Example


def collate(examples: Sequence[Example], *, pad_id: int, train_on_prompt: bool = False) -> dict[str, Any]:
    """Pad on the right to the longest example and return input ids, attention mask and labels."""
    import torch

    width = max(len(one.ids) for one in examples)

    def padded(values: Sequence[int], fill: int) -> list[int]:
        return [*values, *[fill] * (width - len(values))]

    columns = {
        "input_ids": [padded(one.ids, pad_id) for one in examples],
        "attention_mask": [padded([1] * len(one.ids), 0) for one in examples],
        "labels": [padded(one.labels(train_on_prompt=train_on_prompt), IGNORED) for one in examples],
    }
    return {name: torch.tensor(values) for name, values in columns.items()}
