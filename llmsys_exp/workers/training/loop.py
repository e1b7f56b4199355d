"""The training loop around DeepSpeed's engine: one optimizer step after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.tasks.base import Sizes, Task
from llmsys_exp.workers.training.bad_steps import explained_overflow
from llmsys_exp.workers.training.checks import GradientCheck
from llmsys_exp.workers.training.figures import Figures
from llmsys_exp.workers.training.loss_scale import norm_divisor, scale_of
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
    applied: bool = True
    """False when the engine left the update out, because a gradient was no number."""
    pairs: int = 0
    """Sum of squared sequence lengths, which attention's arithmetic grows with."""
    stop: bool = False
    """Some rank was told to stop."""


@dataclass
class _Work:
    """What is to be done in one optimizer step."""

    number: int
    sizes: Sizes
    """Of all ranks' examples."""
    micro_batches: list[list[int]]
    """This rank's, as numbers of examples."""
    first: dict[str, Any] | None = None
    """Its first micro-batch, where it was made ahead."""


def _whole_gradient_norm(engine: Any) -> Any:
    """Return the gradient's norm where every rank holds all of it, and no optimizer of DeepSpeed's tells it.

    Theirs do at stages 1 to 3, and at stage 0 in 16 bit, where the gradients themselves hold the loss scale.
    """
    import torch

    if engine.zero_optimization_stage() > 0 or hasattr(engine.optimizer, "_global_grad_norm"):
        return None
    norms = [weight.grad.norm() for weight in engine.module.parameters() if weight.grad is not None]
    return torch.stack(norms).norm() if norms else None


class Trainer:
    """Runs optimizer steps.

    The next step's first batch is made while the device is at work on backward. Figures are read once a step,
    while it is at work on the update.
    """

    def __init__(
        self,
        engine: Any,
        task: Task,
        order: Order,
        *,
        ranks: Ranks,
        memory: MemoryMeter,
        wants_stop: Callable[[], bool] = lambda: False,
        emulated: bool = False,
    ) -> None:
        """Prepare to train; `emulated`: the other ranks are not there, so that no gradient has a meaning."""
        self._engine, self._task, self._order = engine, task, order
        self._ranks, self._memory, self._wants_stop = ranks, memory, wants_stop
        self._emulated = emulated
        self._figures = Figures(engine)
        self._checked = False
        self._ahead: _Work | None = None

    def steps(self, first: int, last: int) -> Iterator[StepReport]:
        """Train from the step with number `first`, counted from 0, up to and without `last`."""
        self._engine.train()
        for number in range(first, last):
            yield self._step(number, last=last)

    def _step(self, number: int, *, last: int) -> StepReport:
        started = time.monotonic()
        check = None if self._checked else GradientCheck(self._engine.module)
        work = self._work_of(number)
        loss = self._accumulate(work)
        if check:
            self._memory.record("after first backward")
        elif number + 1 < last:
            # before the step, which waits for the norm of the gradients: until then the device is busy
            self._ahead = self._work_of(number + 1)
            self._ahead.first = self._batch(self._ahead.micro_batches[0])
        lr = self._engine.get_lr()[0]
        divisor = norm_divisor(self._engine, scale_of(self._engine))
        self._figures.begin(self._over_ranks(loss), _whole_gradient_norm(self._engine), divisor)
        with explained_overflow(number):
            self._engine.step()
        if check:
            self._memory.record("after first step")
        mean_loss, stop_requests = self._figures.values()
        gradient_norm = self._figures.norm()
        if check:
            check.finish(None if self._emulated else gradient_norm)
            self._checked = True
        return StepReport(
            step=number + 1,
            loss=mean_loss,
            lr=lr,
            gradient_norm=gradient_norm,
            tokens=work.sizes.tokens,
            pairs=work.sizes.pairs,
            seconds=time.monotonic() - started,
            applied=self._engine.was_step_applied(),
            stop=stop_requests > 0,
        )

    def _work_of(self, number: int) -> _Work:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.number == number:
            return ahead
        whole = self._order.step(number)
        return _Work(number, self._task.sizes(whole), self._order.micro_batches(whole, rank=self._ranks.rank))

    def _accumulate(self, work: _Work) -> Any:
        """Run forward and backward over this rank's micro-batches and return their mean loss, unread."""
        # DeepSpeed averages over micro-batches and ranks; dividing sums by this makes the result the mean
        # over all answer tokens of the step, however unevenly they are spread
        share = work.sizes.targets / (self._order.grad_accum * self._order.world_size)
        losses = []
        scale = scale_of(self._engine)
        ready, work.first = work.first, None
        for numbers in work.micro_batches:
            loss = self._task.loss(self._engine, ready or self._batch(numbers), share)
            ready = None  # no batch outlives its pass
            self._engine.backward(loss if scale == 1 else loss.float() * scale)
            # only the last micro-batch of a step makes the engine's step() do work
            if not self._engine.is_gradient_accumulation_boundary():
                self._engine.step()
            losses.append(loss.detach())
            del loss  # with its graph, to which bitsandbytes ties inputs and gathered weights
        return sum(one.double() for one in losses) / self._order.grad_accum

    def _over_ranks(self, loss: Any) -> Any:
        """Return the mean loss, and how many ranks want to stop, as one vector on the device."""
        import torch
        from torch import distributed

        wants_stop = torch.full_like(loss, float(self._wants_stop()))
        figures = torch.stack([loss / self._order.world_size, wants_stop])
        if self._order.world_size > 1:
            distributed.all_reduce(figures)
        return figures

    def _batch(self, numbers: list[int]) -> dict[str, Any]:
        batch = self._task.collate([self._task.examples[one] for one in numbers])
        self._memory.saw(batch)
        on_gpu = self._ranks.device.type == "cuda"
        # a copy from page-locked memory does not make the host wait
        # and what is no tensor, such as a longest length, is read by the host alone
        tensors = {key: value for key, value in batch.items() if hasattr(value, "to")}
        ready = {key: value.pin_memory() if on_gpu else value for key, value in tensors.items()}
        return batch | {key: value.to(self._ranks.device, non_blocking=True) for key, value in ready.items()}
