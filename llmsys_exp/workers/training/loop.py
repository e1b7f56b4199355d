"""The training loop around DeepSpeed's engine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.workers import events
from llmsys_exp.workers.data.collate import collate
from llmsys_exp.workers.data.encode import Example
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.ranks import Ranks
from llmsys_exp.workers.training.checks import GradientCheck, check_loss
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
    """Runs optimizer steps, and writes metrics and events as they happen."""

    def __init__(
        self,
        engine: Any,
        examples: Sequence[Example],
        order: Order,
        *,
        ranks: Ranks,
        pad_id: int,
        train_on_prompt: bool,
        memory: MemoryMeter,
    ) -> None:
        self._engine, self._examples, self._order = engine, examples, order
        self._ranks, self._pad_id, self._train_on_prompt = ranks, pad_id, train_on_prompt
        self._memory = memory

    def run(self, steps: int, *, metrics: Path, log_every: int) -> list[StepReport]:
        """Train for a number of steps and return their reports."""
        reports: list[StepReport] = []
        began = time.monotonic()
        self._engine.train()
        with metrics.open("a", encoding="utf-8") as file:
            for number in range(steps):
                report = self._step(number)
                check_loss(report.loss, step=report.step)
                reports.append(report)
                if number % log_every == 0 or number == steps - 1:
                    self._write(report, file, steps=steps, wall_s=time.monotonic() - began)
        self._memory.record("after last step")
        return reports

    def _step(self, number: int) -> StepReport:
        started = time.monotonic()
        is_first = number == 0
        check = GradientCheck(self._engine.module) if is_first else None
        whole_batch = [self._examples[one] for one in self._order.step(number)]
        targets = sum(one.label_count(train_on_prompt=self._train_on_prompt) for one in whole_batch)
        loss = self._accumulate(number, targets)
        if is_first:
            self._memory.record("after first backward")
        lr = self._engine.get_lr()[0]
        whole_norm = _whole_gradient_norm(self._engine)
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        gradient_norm = whole_norm if norm is None else float(norm)
        if check:
            check.finish(gradient_norm)
            self._memory.record("after first step")
        mean_loss = self._ranks.total(loss)[0] / self._ranks.world_size
        tokens = sum(len(one.ids) for one in whole_batch)
        return StepReport(number + 1, mean_loss, lr, gradient_norm, tokens, time.monotonic() - started)

    def _accumulate(self, number: int, targets: int) -> float:
        """Run forward and backward over this rank's micro-batches and return their mean loss."""
        # DeepSpeed averages over micro-batches and ranks; dividing sums by this makes the result the mean
        # over all answer tokens of the step, however unevenly they are spread
        share = targets / (self._order.grad_accum * self._order.world_size)
        total = 0.0
        for numbers in self._order.micro_batches(number, rank=self._ranks.rank):
            batch = collate(
                [self._examples[one] for one in numbers],
                pad_id=self._pad_id,
                train_on_prompt=self._train_on_prompt,
            )
            moved = {key: value.to(self._ranks.device) for key, value in batch.items()}
            loss = self._engine(**moved, num_items_in_batch=share).loss
            self._engine.backward(loss)
            # only the last micro-batch of a step makes the engine's step() do work
            if not self._engine.is_gradient_accumulation_boundary():
                self._engine.step()
            total += float(loss.detach())
        return total / self._order.grad_accum

    def _write(self, report: StepReport, file: Any, *, steps: int, wall_s: float) -> None:
        tokens_per_s = report.tokens / report.seconds
        shown = {
            "loss": report.loss,
            "lr": report.lr,
            "tokens_per_s": tokens_per_s,
            "grad": report.gradient_norm,
        }
        events.progress("train", report.step, steps, unit="step", **shown)
        if self._ranks.is_first:
            line = {
                "step": report.step,
                "train/loss": report.loss,
                "lr": report.lr,
                "tokens_per_s": tokens_per_s,
                "grad_norm": report.gradient_norm,
                "wall_s": wall_s,
            }
            memory = {f"mem/{name}": value for name, value in self._memory.now().items()}
            file.write(json.dumps(line | memory) + "\n")
            file.flush()
