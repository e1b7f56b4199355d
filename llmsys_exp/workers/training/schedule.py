"""Learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmsys_exp.config.schema import Scheduler


def learning_rate_factor(kind: Scheduler, *, steps: int, warmup_ratio: float) -> Callable[[int], float]:
    """Return the factor of the learning rate for the step with a given number, counted from 0.

    >>> factor = learning_rate_factor(Scheduler.linear, steps=10, warmup_ratio=0.2)
    >>> [round(factor(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    warmup_steps = math.ceil(steps * warmup_ratio)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        if kind is Scheduler.linear:
            return 1.0 - done
        return 1.0 if kind is Scheduler.constant else 0.5 * (1.0 + math.cos(math.pi * done))

    return factor
