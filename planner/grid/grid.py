"""A grid of settings: memory and speed of every combination, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.grid.estimate import peak_bytes
from planner.grid.polynomial import Array
from planner.grid.structures import SIZES, structures
from planner.speed import step_time
from planner.training_case import TrainingCase


@dataclass(frozen=True)
class Block:
    """All sizes of one structure: arrays over micro-batch x length x accumulation."""

    case: TrainingCase
    peak_bytes: Array
    step_s: Array
    tokens_per_s: Array


def blocks(case: TrainingCase, axes: Mapping[str, Sequence[Any]]) -> Iterator[Block]:
    """Estimate a grid, one structure at a time.

    Args:
        case: the settings that no axis names.
        axes: field of `TrainingCase` -> values. `micro_batch`, `seq_len` and `grad_accum` are evaluated
            as arrays, the others one by one.
    """
    sizes = [np.asarray(axes.get(name, [getattr(case, name)])) for name in SIZES]
    micro, length, accum = np.meshgrid(*sizes, indexing="ij")
    for structure in structures(case, axes):
        peaks = peak_bytes(structure, micro[:, :, :1], length[:, :, :1], accum)
        time = step_time(structure, micro, length, accum)
        yield Block(structure, peaks, time.seconds, time.tokens_per_s)


def table(case: TrainingCase, axes: Mapping[str, Sequence[Any]]) -> Any:
    """The grid as a pandas table: one row a point, memory in bytes, seconds and tokens a second."""
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

    found = list(blocks(case, axes))
    sizes = np.meshgrid(*[np.asarray(axes.get(n, [getattr(case, n)])) for n in SIZES], indexing="ij")
    points = sizes[0].size
    columns: dict[str, Any] = {}
    for name in (name for name in axes if name not in SIZES):
        columns[name] = np.repeat([getattr(block.case, name) for block in found], points)
    for name, values in zip(SIZES, sizes, strict=True):
        columns[name] = np.tile(values.ravel(), len(found))
    for name in ("peak_bytes", "step_s", "tokens_per_s"):
        columns[name] = _joined([getattr(block, name) for block in found])
    return pd.DataFrame(columns)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.ravel() for array in arrays]) if arrays else np.zeros(0)
