"""What the formula says is held at the end of each phase, for a dry run on the CPU, which tells no peaks."""

from __future__ import annotations

from llmsys_exp.config.schema import Config
from llmsys_exp.plan.case import planner_case
from planner.training import TrainingRun


def held_by_formula(config: Config) -> dict[str, int]:
    """Play a settled job; return the bytes of live tensors at the end of each phase, at their highest."""
    arena = TrainingRun(planner_case(config, dtype=config.training.dtype.value)).play()
    held: dict[str, int] = {}
    for phase in arena.phases:
        name = phase.name.rstrip(" 0123456789")
        held[name] = max(held.get(name, 0), phase.end_bytes)
    # DeepSpeed's backward ends when gradients are reduced
    return {**held, "backward": held.get("reduce", held.get("backward", 0))}
