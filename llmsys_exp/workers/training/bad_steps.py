"""Steps whose loss or gradient is no number: left out, counted, and too many of them end the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmsys_exp.config.schema import Dtype
from llmsys_exp.errors import JobError
from llmsys_exp.workers import events

if TYPE_CHECKING:
    from llmsys_exp.workers.training.loop import StepReport
    from llmsys_exp.workers.training.progress import Progress


def leave_out_bad_steps(engine: Any) -> None:
    """Make the engine skip the update when a gradient is no number.

    DeepSpeed 0.19 does so by itself at stages 1 to 3 and for fp16, where it needs the norm anyway. At stage 0
    this look waits for the device once a step, so only runs that allow bad steps pay for it.
    """
    if engine.zero_optimization_stage() == 0 and not engine.fp16_enabled():
        _guard_plain_optimizer(engine)


def judge(report: StepReport, progress: Progress, *, dtype: Dtype, allowed: int) -> None:
    """Count a step that came to nothing.

    Raises:
        JobError: when more than `allowed` had a loss or a gradient that is no number.
    """
    norm = report.gradient_norm
    # DeepSpeed's norms are -1 where the sum was no number
    good_norm = norm is None or (math.isfinite(norm) and norm >= 0)
    if math.isfinite(report.loss) and dtype is Dtype.fp16 and not report.applied:
        progress.overflow_steps += 1
        return
    if math.isfinite(report.loss) and good_norm and report.applied:
        return
    progress.bad_steps += 1
    what = f"loss {report.loss:g}, gradient norm {'unknown' if norm is None else f'{norm:g}'}"
    if progress.bad_steps > allowed:
        left_out = f" after {allowed} that were left out" if allowed else ""
        raise JobError(
            f"Training diverged in step {report.step}{left_out}: {what}",
            kind="diverged",
            do="Lower training.learning_rate, raise training.warmup_ratio, or use dtype bf16 instead of "
            "fp16; training.bad_steps_allowed=N leaves N such steps out",
        )
    done = "was taken although" if report.applied else "was left out:"
    events.note(f"step {report.step} {done} {what} ({progress.bad_steps} of {allowed} allowed)")


@contextmanager
def explained_overflow(number: int) -> Iterator[None]:
    """Say what it means that fp16's loss scale cannot fall any further."""
    try:
        yield
    except Exception as error:
        if "loss scale already at minimum" not in str(error):
            raise
        raise JobError(
            f"fp16 overflowed in step {number + 1} at the smallest loss scale",
            kind="fp16_overflow",
            do="The numbers of this model do not fit fp16: use training.dtype=bf16 or fp32, or a lower "
            "training.learning_rate",
        ) from error


def _guard_plain_optimizer(engine: Any) -> None:
    import torch

    optimizer = engine.optimizer
    plain_step = optimizer.step

    def step(*arguments: Any, **named: Any) -> Any:
        # after the all-reduce every rank holds the same gradients, so all decide alike
        norms = [one.grad.norm() for one in engine.module.parameters() if one.grad is not None]
        # the engine asks this attribute whether the step was taken
        optimizer.overflow = bool(norms) and not bool(torch.isfinite(torch.stack(norms)).all())
        return None if optimizer.overflow else plain_step(*arguments, **named)

    # torch's schedulers mark a step that they count, and warn of one without the mark
    step._wrapped_by_lr_sched = True
    optimizer.step = step
