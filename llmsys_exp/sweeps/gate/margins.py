"""How far what a job requires may lie from its estimate: at least half as much again as was ever seen.

`benchmarks/sweep_planning.py --check` looks at random settings; what was seen stands in docs/sweeps.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.tables import CPU
from planner.training_case import Method, TrainingCase
from planner.uncertainty import EXPANDABLE, lower_limit_bytes, residual_class
from planner.units import MIB


@dataclass(frozen=True)
class Margin:
    """What a job may need less and more than its estimate, as shares of it; `extra_bytes` go on top."""

    under: float
    over: float
    extra_bytes: int = 0


ADAPTERS = Margin(0.01, 0.02, 352 * MIB)
"""Adapters with expandable segments: a job of theirs never took less, and at most 0.68 GiB (2 %) more."""
UNDER = {Method.full: 0.30, Method.freeze: 0.40}
"""Where gradients are kept, or not, is estimated too high: by 20 % (full) and by 25 % (freeze)."""
UNDER_ADAPTERS = 0.15
OVER = {False: 0.35, True: 0.27}
"""More than any was seen to need more, without (32 %) and with expandable segments (18 %)."""
OVER_PACKED = {False: 0.45, True: 0.25}
"""The same of jobs over a quantised base, of which fewer were looked at (16 % with expandable segments)."""


def margin_of(case: TrainingCase) -> Margin:
    """Return the margin of a job."""
    if case.lora is not None and case.method in (Method.lora, Method.qlora) and _is_known(case):
        return ADAPTERS
    exact = case.expandable_segments or case.device == CPU
    over = (OVER_PACKED if case.method is Method.qlora else OVER)[exact]
    return Margin(UNDER.get(case.method, UNDER_ADAPTERS), over)


def _is_known(case: TrainingCase) -> bool:
    usual = case.loss == "stock" and not (case.liger or case.checkpointing.cpu)
    return usual and case.engine == "deepspeed" and residual_class(case) == EXPANDABLE


def most_bytes(case: TrainingCase, estimates: Any) -> Any:
    """Return the most that a job may need."""
    margin = margin_of(case)
    return estimates * (1 + margin.over) + margin.extra_bytes


def surely_fits(case: TrainingCase, estimates: Any, limit_bytes: int) -> Any:
    """Where the whole band of a forecast would fit, whatever the play says."""
    return most_bytes(case, estimates) <= lower_limit_bytes(case, limit_bytes)


def surely_not(case: TrainingCase, estimates: Any, limit_bytes: int) -> Any:
    """Where a job does not fit, whatever the play says."""
    return estimates * (1 - margin_of(case).under) > limit_bytes
