"""The training loop around DeepSpeed's engine: one optimizer step after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks.base import Task
from llmsys_exp.workers.training.checks import GradientCheck
from llmsys_exp.workers.training.memory import MemoryMeter


@dataclass(frozen=True)
class StepReport:
    """Figures of one optimizer step, over all ranks."""

    step: int
    loss: float
    lr: float
    gradient_norm: float | None
    tokens: int
    seconds: float


def _whole_gradient_norm(engine: Any) -> float | None:
    """Return the gradient's norm where every rank holds all of it; sharding stages tell it themselves."""
    import torch

    if engine.zero_optimization_stage() > 0:
        return None
    norms = [weight.grad.norm() for weight in engine.module.parameters() if weight.grad is not None]
    return float(torch.stack(norms).norm()) if norms else None


class Trainer:
    """Runs optimizer steps."""

    def __init__(self, engine: Any, task: Task, order: Order, *, ranks: Ranks, memory: MemoryMeter) -> None:
        self._engine, self._task, self._order = engine, task, order
        self._ranks, self._memory = ranks, memory
        self._checked = False

    def steps(self, first: int, last: int) -> Iterator[StepReport]:
        """Train from the step with number `first`, counted from 0, up to and without `last`."""
        self._engine.train()
        for number in range(first, last):
            yield self._step(number)

    def _step(self, number: int) -> StepReport:
        started = time.monotonic()
        check = None if self._checked else GradientCheck(self._engine.module)
        whole_batch = [self._task.examples[one] for one in self._order.step(number)]
        loss = self._accumulate(number, self._task.targets(whole_batch))
        if check:
            self._memory.record("after first backward")
        lr = self._engine.get_lr()[0]
        whole_norm = _whole_gradient_norm(self._engine)
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        gradient_norm = whole_norm if norm is None else float(norm)
        if check:
            check.finish(gradient_norm)
            self._checked = True
            self._memory.record("after first step")
        mean_loss = self._ranks.total(loss)[0] / self._ranks.world_size
        tokens = self._task.tokens(whole_batch)
        return StepReport(number + 1, mean_loss, lr, gradient_norm, tokens, time.monotonic() - started)

    def _accumulate(self, number: int, targets: int) -> float:
        """Run forward and backward over this rank's micro-batches and return their mean loss."""
        # DeepSpeed averages over micro-batches and ranks; dividing sums by this makes the result the mean
        # over all answer tokens of the step, however unevenly they are spread
        share = targets / (self._order.grad_accum * self._order.world_size)
        losses = []
        for numbers in self._order.micro_batches(number, rank=self._ranks.rank):
            batch = self._task.collate([self._task.examples[one] for one in numbers])
            moved = {key: value.to(self._ranks.device, non_blocking=True) for key, value in batch.items()}
            loss = self._task.loss(self._engine, moved, share)
            self._engine.backward(loss)
            # only the last micro-batch of a step makes the engine's step() do work
            if not self._engine.is_gradient_accumulation_boundary():
                self._engine.step()
            losses.append(loss.detach())
        # read at the end: each reading waits for the GPU
        return sum(float(one) for one in losses) / self._order.grad_accum
