"""Training sequences: token ids with a mark on each that is learnt, many in a few flat arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from llmsys_exp.workers.data.rows import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Example:
    """One training sequence, which holds one example or, packed, several."""

    ids: NDArray[np.int32]
    learnt: NDArray[np.bool_]
    """Which tokens carry a label; never the first of an example, which nothing predicts."""
    lengths: tuple[int, ...] = ()
    """Tokens of each example in a packed sequence; empty: the sequence is one example."""
    row: Row | None = None
    """Held-out examples keep their last question and answer, for the task score."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Token ids where there is something to learn, else `IGNORED`."""
        return np.where(self.learnt, self.ids, IGNORED)

    @property
    def label_count(self) -> int:
        """Tokens the loss is averaged over."""
        return int(self.learnt.sum())

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Tokens before the last answer."""
        return tuple(self.ids[: self._answer_start].tolist())

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """Tokens of the last answer, the one that ends the turn included."""
        return tuple(self.ids[self._answer_start :].tolist())

    @property
    def _answer_start(self) -> int:
        return int(np.flatnonzero(~self.learnt)[-1]) + 1


class TrainingSequences(Sequence[Example]):
    """Training sequences by number, made when asked for; their sizes are known without making them."""

    @property
    @abstractmethod
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence."""

    @property
    @abstractmethod
    def learnt_counts(self) -> NDArray[np.int64]:
        """Tokens of each sequence that the loss is averaged over."""

    @property
    @abstractmethod
    def pairs(self) -> NDArray[np.int64]:
        """Squared lengths of what attends to itself, summed up in each sequence: attention grows with it."""

    @abstractmethod
    def _made(self, number: int) -> Example:
        """Return the sequence with a number from 0 up to the last."""

    @overload
    def __getitem__(self, number: int) -> Example: ...
    @overload
    def __getitem__(self, number: slice) -> list[Example]: ...
    def __getitem__(self, number: int | slice) -> Example | list[Example]:
        """Return a sequence, or a list of them for a slice."""
        if isinstance(number, slice):
            return [self._made(one) for one in range(*number.indices(len(self)))]
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._made(number)


class Examples(TrainingSequences):
    """Examples in flat arrays: a few objects for millions of tokens, and quick to store."""

    def __init__(
        self,
        ids: NDArray[np.int32],
        learnt: NDArray[np.bool_],
        starts: NDArray[np.int64],
        rows: Sequence[Row] | None = None,
    ) -> None:
        """Hold the arrays; example n is from `starts[n]` up to `starts[n + 1]`."""
        self.ids, self.learnt, self.starts, self.rows = ids, learnt, starts, rows

    @classmethod
    def joined(cls, parts: Sequence[tuple[Any, Any]], rows: Sequence[Row] | None = None) -> Examples:
        """Join pairs of ids and marks."""
        lengths = [len(ids) for ids, _ in parts]
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        ids = np.concatenate([np.asarray(ids, dtype=np.int32) for ids, _ in parts])
        return cls(ids, np.concatenate([learnt for _, learnt in parts]), starts, rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example."""
        return np.diff(self.starts)

    @cached_property
    def learnt_counts(self) -> NDArray[np.int64]:
        """Learnt tokens of each example."""
        return np.add.reduceat(self.learnt, self.starts[:-1], dtype=np.int64)

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Squared length of each example."""
        return self.lengths**2

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.starts) - 1

    def _made(self, number: int) -> Example:
        here = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return Example(self.ids[here], self.learnt[here], row=self.rows[number] if self.rows else None)
