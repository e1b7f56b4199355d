"""The best held-out loss so far, and whether waiting for a better one has lasted long enough."""

from __future__ import annotations

import math

from llmsys_exp.workers.training.progress import Progress


def note_evaluation(progress: Progress, loss: float, *, min_delta: float) -> bool:
    """Enter a held-out loss into the progress of a run and return whether it is the lowest.

    Patience is not restored by a loss that is lower by less than `min_delta`.

    >>> progress = Progress(step=5)
    >>> [note_evaluation(progress, loss, min_delta=0.1) for loss in (2.0, 1.95, 1.96, 1.5)]
    [True, True, False, True]
    >>> progress.waited, progress.best_loss
    (0, 1.5)
    """
    progress.heldout_loss, progress.evaluated_at = loss, progress.step
    if not math.isfinite(loss):
        progress.waited += 1
        return False
    if progress.to_beat is None or loss < progress.to_beat - min_delta:
        progress.to_beat, progress.waited = loss, 0
    else:
        progress.waited += 1
    lowest = progress.best_loss is None or loss < progress.best_loss
    if lowest:
        progress.best_loss, progress.best_step = loss, progress.step
    return lowest


def should_stop(progress: Progress, *, patience: int | None) -> bool:
    """Return whether `patience` evaluations in a row brought nothing better."""
    return patience is not None and progress.waited >= patience
