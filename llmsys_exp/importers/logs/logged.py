"""What a log of another tool tells: a loss for each step that it wrote down, and its evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

MOST_STEPS = 10**12
"""Far beyond any run, and what a broken log may hold."""


@dataclass(frozen=True)
class LoggedRun:
    """The values of one training run."""

    steps: list[dict[str, Any]]
    """`step` (optimizer steps done), `loss`, and where told `learning_rate`, `grad_norm`, `epoch`."""
    evaluation: list[dict[str, Any]]
    """`step`, `loss`, and where they are told `epoch` and `perplexity`; step 0 is before training."""
    source: Path
    """The file that was read."""
    format: str
    """trainer_log, trainer_state or deepspeed_chat."""
    mean_of_steps: int = 1
    """Each loss is the mean over so many steps up to its own."""
    total_steps: int | None = None
    """Steps that the run was to take, where the log tells."""
    seconds: float | None = None
    """Wall time of training, where the log tells."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "source": str(self.source), "notes": list(self.notes)}


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, NaN included: a loss may be that."""
    whole_number = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, float) or (whole_number and abs(value) < 1e300)


def whole(value: Any) -> int | None:
    """Return a number of steps; None where it is none."""
    return int(value) if is_number(value) and abs(value) < MOST_STEPS else None


def interval(steps: list[dict[str, Any]]) -> int:
    """Return the usual distance between logged steps: the number of steps that a loss is the mean of.

    >>> interval([{"step": 10}, {"step": 20}, {"step": 30}, {"step": 33}])
    10
    """
    numbers = [0, *(int(one["step"]) for one in steps)]
    gaps = [after - before for before, after in pairwise(numbers) if after > before]
    return max(set(gaps), key=gaps.count) if gaps else 1
