"""What a training run says of itself in `results/train.json`."""

from __future__ import annotations

from typing import Any

from llmsys_exp.workers.methods.parameters import parameter_counts
from llmsys_exp.workers.tasks.base import Task
from llmsys_exp.workers.training.progress import Progress


def summary_of(progress: Progress, task: Task, model: Any, *, after: dict[str, Any] | None) -> dict[str, Any]:
    """Return how far the run came and what it reached; `after` are the figures of the last evaluation."""
    first = progress.first_step or {}
    return {
        "steps": progress.step,
        **task.describe(),
        "unit": task.unit,
        f"{task.unit}s": progress.tokens,
        "seconds": progress.seconds,
        f"{task.unit}s_per_s": progress.tokens / progress.seconds,
        "loss": {"first": first.get("loss"), "last": progress.last_loss},
        "first_step": first,
        "evaluation": {"before": progress.before, "after": after},
        "best": {"loss": progress.best_loss, "step": progress.best_step},
        "bad_steps": progress.bad_steps,
        "overflow_steps": progress.overflow_steps,
        "stopped_early": progress.stopped_early,
        "resumed_from": progress.resumed_from,
        **parameter_counts(model),
    }


def shown_figures(figures: dict[str, Any] | None) -> dict[str, float]:
    """Loss and score of an evaluation, the score under its own name."""
    if not figures:
        return {}
    shown = {"loss": figures["loss"]}
    if "score" in figures:
        shown[str(figures["score_name"])] = figures["score"]
    return shown
