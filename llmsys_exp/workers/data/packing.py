"""Several examples in one sequence, so that little of a batch is padding."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from llmsys_exp.workers.data.example import Example, Examples, TrainingSequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW = 4096
"""Examples that are packed with one another. More would pack no tighter, fewer would mix better."""


class PackedExamples(TrainingSequences):
    """Examples put together once, the same at every start of the run."""

    def __init__(self, examples: Examples, *, max_length: int, seed: int) -> None:
        """Pack examples of at most `max_length` tokens."""
        self._examples = examples
        self.bins = pack(examples.lengths, max_length=max_length, seed=seed)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each packed sequence."""
        return self._summed(self._examples.lengths)

    @cached_property
    def learnt_counts(self) -> NDArray[np.int64]:
        """Learnt tokens of each packed sequence."""
        return self._summed(self._examples.learnt_counts)

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Squared lengths of the examples in each sequence, which do not attend to one another."""
        return self._summed(self._examples.pairs)

    def __len__(self) -> int:
        """Return the number of packed sequences."""
        return len(self.bins)

    def _summed(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([int(sizes[one].sum()) for one in self.bins], dtype=np.int64)

    def _made(self, number: int) -> Example:
        parts = [self._examples[int(one)] for one in self.bins[number]]
        return Example(
            np.concatenate([one.ids for one in parts]),
            np.concatenate([one.learnt for one in parts]),
            lengths=tuple(len(one.ids) for one in parts),
        )


def pack(lengths: NDArray[np.int64], *, max_length: int, seed: int) -> list[NDArray[np.int64]]:
    """Say which examples share a sequence: the longest first, each into the fullest one with room for it.

    Works through windows of a shuffled order, so that neighbours in a sequence differ from those in the file.
    """
    order = list(range(len(lengths)))
    random.Random(f"{seed}/packing").shuffle(order)
    bins: list[list[int]] = []
    for first in range(0, len(order), WINDOW):
        window = sorted(order[first : first + WINDOW], key=lambda one: -lengths[one])
        _pack_window(window, lengths, max_length, bins)
    return [np.array(sorted(one), dtype=np.int64) for one in bins]


def _pack_window(
    window: Sequence[int], lengths: NDArray[np.int64], max_length: int, bins: list[list[int]]
) -> None:
    rooms: list[tuple[int, int]] = []  # (tokens left, number of the sequence), the fullest first
    for one in window:
        length = int(lengths[one])
        at = bisect_left(rooms, (length, -1))
        if at < len(rooms):
            room, number = rooms.pop(at)
        else:
            room, number = max_length, len(bins)
            bins.append([])
        bins[number].append(one)
        insort(rooms, (room - length, number))
