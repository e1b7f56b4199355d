"""Batches: sequences padded on the right to one width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmsys_exp.workers.data.example import IGNORED, Example


def collate(
    examples: Sequence[Example],
    *,
    pad_id: int,
    varlen: bool = False,
    multiple: int = 1,
    most: int | None = None,
) -> dict[str, Any]:
    """Return input ids and labels as tensors on the host, and for packed sequences where each example begins.

    A batch carries no attention mask. Padding stands on the right, where causal attention never looks, and
    has no label; without a mask attention takes its fastest kernel. Packed sequences get `position_ids` that
    begin again with each example: transformers (`masking_utils.find_packed_sequence_indices`, 5.17 and 5.23)
    keeps attention within each of them if there is neither an attention mask nor a cache, so the model
    must be called with `use_cache=False`.

    Args:
        examples: A micro-batch.
        pad_id: Fills up shorter sequences.
        varlen: For packed sequences under flash attention: also say where each example begins in the batch
            laid out in one line, as its kernel takes it. It finds that by itself for a batch of one only.
        multiple: The width is rounded up to one: fewer different sizes for the allocator, whole tiles for
            tensor cores.
        most: The width that rounding up does not go beyond.
    """
    import torch

    width = _width(max(len(one.ids) for one in examples), multiple, most)
    ids = np.full((len(examples), width), pad_id, dtype=np.int64)
    labels = np.full((len(examples), width), IGNORED, dtype=np.int64)
    for row, one in enumerate(examples):
        ids[row, : len(one.ids)] = one.ids
        labels[row, : len(one.ids)] = one.labels
    batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if not any(one.lengths for one in examples):
        return batch
    lengths = [_stretches(one, width) for one in examples]
    positions = np.concatenate([np.arange(length) for row in lengths for length in row])
    batch["position_ids"] = torch.from_numpy(positions.reshape(ids.shape))
    return batch | _varlen([length for row in lengths for length in row]) if varlen else batch


def _width(longest: int, multiple: int, most: int | None) -> int:
    rounded = -(-longest // multiple) * multiple
    return rounded if most is None else max(longest, min(rounded, most))


def _stretches(one: Example, width: int) -> list[int]:
    """Lengths that fill a row: its examples, and its padding as one more that nobody attends to."""
    lengths = list(one.lengths or (len(one.ids),))
    return [*lengths, width - len(one.ids)] if len(one.ids) < width else lengths


def _varlen(lengths: Sequence[int]) -> dict[str, Any]:
    """Arguments of flash attention's kernel for sequences of different lengths, by transformers' names."""
    import torch

    borders = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return {
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }
