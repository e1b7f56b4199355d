"""Which examples make up which step."""

from __future__ import annotations

import random
from dataclasses import dataclass


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
        epochs: dict[int, list[int]] = {}
        picked = []
        for position in range(first, first + self.global_batch):
            epoch, place = divmod(position, self.count)
            if epoch not in epochs:
                epochs[epoch] = self._shuffled(epoch)
            picked.append(epochs[epoch][place])
        return picked

    def micro_batches(self, number: int, *, rank: int) -> list[list[int]]:
        """Examples of one rank in one optimizer step, by micro-batch."""
        mine = self.step(number)[rank :: self.world_size]
        return [mine[at : at + self.micro_batch] for at in range(0, len(mine), self.micro_batch)]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self.count))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order
