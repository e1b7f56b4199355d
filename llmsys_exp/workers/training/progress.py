"""How far a run has come: everything beside weights, optimizer and random states that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class Progress:
    """Figures of a run so far, written into every checkpoint as JSON."""

    step: int = 0
    """Optimizer steps done."""
    tokens: int = 0
    seconds: float = 0.0
    """Time in optimizer steps."""
    first_step: dict[str, Any] | None = None
    last_loss: float | None = None
    before: dict[str, Any] | None = None
    """Evaluation before the first step."""
    heldout_loss: float | None = None
    """Of the last evaluation in mid-training."""
    evaluated_at: int | None = None
    best_loss: float | None = None
    best_step: int | None = None
    to_beat: float | None = None
    """The loss that evaluations must be lower than to count as better."""
    waited: int = 0
    """Evaluations in a row that were not."""
    bad_steps: int = 0
    """Steps left out because loss or gradient was no number."""
    overflow_steps: int = 0
    """Steps left out by the fp16 loss scaler."""
    stopped_early: bool = False
    resumed_from: list[int] = field(default_factory=list)
    """Steps at which the run was taken up again."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        """Read the JSON form; keys of other versions are left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})
