"""Which examples make up which step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

SORTED_BATCHES = 64
"""Batches that are sorted by length together: enough to make lengths alike, few enough to stay mixed."""


@dataclass(frozen=True)
class Order:
    """Which examples make up which step, the same on every rank and known for any step at once.

    Epoch after epoch is shuffled and laid end to end; step s takes the s-th slice of a global batch, and
    every rank its part of that slice. A batch may reach into the next epoch; no example is dropped.
    """

    count: int
    micro_batch: int
    grad_accum: int
    world_size: int
    seed: int
    lengths: Sequence[int] | None = field(default=None, repr=False, compare=False)
    """Tokens of each example. Given, examples of about one length share a batch."""
    _epochs: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def global_batch(self) -> int:
        """Examples per optimizer step over all ranks."""
        return self.micro_batch * self.grad_accum * self.world_size

    def steps(self, *, epochs: float, max_steps: int | None) -> int:
        """Optimizer steps of the run, at least one."""
        wanted = max(1, -int(-(epochs * self.count) // self.global_batch))
        return wanted if max_steps is None else min(wanted, max_steps)

    def step(self, number: int) -> list[int]:
        """Examples of one optimizer step over all ranks."""
        first = number * self.global_batch
        picked = []
        for position in range(first, first + self.global_batch):
            epoch, place = divmod(position, self.count)
            picked.append(self._epoch(epoch)[place])
        return picked

    def micro_batches(self, whole_step: Sequence[int], *, rank: int) -> list[list[int]]:
        """One rank's part of what `step` gave, by micro-batch."""
        mine = list(whole_step[rank :: self.world_size])
        return [mine[at : at + self.micro_batch] for at in range(0, len(mine), self.micro_batch)]

    def _epoch(self, epoch: int) -> list[int]:
        if epoch not in self._epochs:
            for old in [one for one in self._epochs if one < epoch - 1 or one > epoch]:
                del self._epochs[old]
            shuffled = self._shuffled(epoch)
            self._epochs[epoch] = shuffled if self.lengths is None else self._grouped(epoch, shuffled)
        return self._epochs[epoch]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self.count))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order

    def _grouped(self, epoch: int, order: list[int]) -> list[int]:
        """Sort stretches of the shuffled order by length, cut them where steps begin, shuffle the batches."""
        lengths, size = self.lengths, self.global_batch
        assert lengths is not None
        # the first batch of an epoch may have begun in the one before
        begun = min(-epoch * self.count % size, len(order))
        head, rest = order[:begun], order[begun:]
        batches: list[list[int]] = []
        for first in range(0, len(rest), SORTED_BATCHES * size):
            stretch = sorted(rest[first : first + SORTED_BATCHES * size], key=lambda one: lengths[one])
            batches += [stretch[at : at + size] for at in range(0, len(stretch), size)]
        whole = [one for one in batches if len(one) == size]
        random.Random(f"{self.seed}/{epoch}/batches").shuffle(whole)
        tail = [one for one in batches if len(one) < size]
        return [*head, *(one for batch in (*whole, *tail) for one in batch)]
