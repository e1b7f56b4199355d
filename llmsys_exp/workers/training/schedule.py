"""Learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmsys_exp.config.schema import Scheduler, TrainingConfig
from llmsys_exp.errors import UserError


def learning_rate_factor(training: TrainingConfig, *, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate for the optimizer step with a given number, counted from 0.

    DeepSpeed asks once an optimizer step, however many micro-batches that takes, and not for a step that fp16
    skipped.

    >>> training = TrainingConfig(scheduler=Scheduler.linear, warmup_ratio=0.2)
    >>> factor = learning_rate_factor(training, steps=10)
    >>> [round(factor(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    kind, warmup_steps = training.scheduler, warmup_length(training, steps=steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        if kind is Scheduler.linear:
            return 1.0 - done
        return 1.0 if kind is Scheduler.constant else 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def warmup_length(training: TrainingConfig, *, steps: int) -> int:
    """Return the steps over which the rate rises: as given, else a share of all, rounded up."""
    if training.warmup_steps is None:
        return math.ceil(steps * training.warmup_ratio)
    if training.warmup_steps > steps:
        raise UserError(
            f"training.warmup_steps is {training.warmup_steps}, but the run has {steps} steps",
            why="The learning rate would never be reached",
            do="Lower it, or set training.warmup_ratio",
        )
    return training.warmup_steps
