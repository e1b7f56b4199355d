"""The estimate tier: one setting in closed form, for whoever asks about thousands one by one.

`benchmarks/grid_error.py` compares it with the formula tier: 1.7 % off in the mean, 20 % at worst.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.errors import CaseError
from planner.grid.estimate import peak_bytes
from planner.speed import step_time
from planner.tables import CPU
from planner.training_case import TrainingCase
from planner.units import GIB

ENGINES = ("deepspeed", "plain")


@dataclass(frozen=True)
class Estimate:
    """The highest moment of live tensors on one GPU, engine start included, and the speed.

    Attributes:
        step_s, tokens_per_s: None on the CPU, whose speed is not forecast.
    """

    peak_bytes: int
    step_s: float | None
    tokens_per_s: float | None
    tier: str = "estimate"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, memory in GiB."""
        speed = {"step_s": self.step_s, "tokens_per_s": self.tokens_per_s}
        return {
            "tier": self.tier,
            "peak_gib": round(self.peak_bytes / GIB, 4),
            **{name: None if value is None else round(value, 4) for name, value in speed.items()},
        }


def estimate(case: TrainingCase) -> Estimate:
    """Estimate one training case.

    Raises:
        CaseError: for an engine without closed forms.
    """
    if case.engine not in ENGINES:
        raise CaseError(f"tier estimate has no closed form of engine {case.engine}; use tier formula")
    peak = int(peak_bytes(case, case.micro_batch, case.seq_len, case.grad_accum))
    if case.device == CPU:
        return Estimate(peak, None, None)
    time = step_time(case, case.micro_batch, case.seq_len, case.grad_accum)
    return Estimate(peak, float(time.seconds), float(time.tokens_per_s))
