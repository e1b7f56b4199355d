"""Chooses the settings a user left open: the fastest combination that fits.

The order is by a rough relative cost of a training token, enough to rank settings of one job on one
machine; it is no forecast of seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from planner.shallow import quick_peak_bytes
from planner.training_case import Method, TrainingCase
from planner.verdict import TIGHT_SHARE

# Relative cost of a token. Recomputation: one forward more of about three passes. Stage 3: weights are
# gathered twice more a step. Offload: optimizer state or weights cross the host link every step.
RECOMPUTE = 4 / 3
GATHER = 1.25
OFFLOAD_OPTIMIZER = 1.5
OFFLOAD_PARAM = 2.5
SMALL_BATCH_TOKENS = 256  # tokens at which a micro-batch runs at half efficiency

SEARCHED = (
    "zero_stage",
    "offload_optimizer",
    "offload_param",
    "gradient_checkpointing",
    "micro_batch",
)


@dataclass(frozen=True)
class Chosen:
    """A setting that fits (or the smallest one, when nothing does) and how far the search went."""

    case: TrainingCase
    fits: bool
    tried: int


def options(case: TrainingCase, free: Mapping[str, Sequence[Any]]) -> Iterator[TrainingCase]:
    """Every consistent combination of the open settings."""
    names = [name for name in SEARCHED if name in free]
    for values in product(*(free[name] for name in names)):
        candidate = replace(case, **dict(zip(names, values, strict=True)))
        if consistent(candidate):
            yield candidate


def consistent(case: TrainingCase) -> bool:
    """Whether DeepSpeed does what these settings say."""
    if case.offload_optimizer != "none" and case.zero_stage == 0:
        return False
    if case.offload_param != "none" and (case.zero_stage != 3 or case.offload_optimizer == "none"):
        return False
    return not (case.method is Method.qlora and case.zero_stage == 3)


def relative_cost(case: TrainingCase) -> float:
    """Cost of a token relative to plain data parallel training."""
    cost = 1 + SMALL_BATCH_TOKENS / case.tokens
    if case.gradient_checkpointing:
        cost *= RECOMPUTE
    if case.zero_stage == 3 and case.world_size > 1:
        cost *= GATHER
    if case.offload_optimizer != "none":
        cost *= OFFLOAD_OPTIMIZER
    if case.offload_param != "none":
        cost *= OFFLOAD_PARAM
    # Of equals, take the one that shards more: it costs nothing and leaves room.
    return cost - 0.001 * min(case.zero_stage, 2)


def choose(case: TrainingCase, free: Mapping[str, Sequence[Any]], *, budget_bytes: int | None) -> Chosen:
    """Find the cheapest combination of the open settings that stays within the budget.

    Args:
        case: the job, with any value in the open fields.
        free: open field -> values it may take.
        budget_bytes: what the allocator may reserve; None: no limit.
    """
    candidates = sorted(options(case, free), key=relative_cost)
    if budget_bytes is None:
        return Chosen(candidates[0], fits=True, tried=1)
    room = int(budget_bytes * (1 - TIGHT_SHARE))
    peaks: dict[TrainingCase, int] = {}
    too_big: list[TrainingCase] = []
    for tried, candidate in enumerate(candidates, start=1):
        if any(_needs_at_least(candidate, other) for other in too_big):
            continue
        # After a miss, ask the least hungry of its kind: when that does not fit, none between them does.
        for tested in (candidate, _least_hungry(candidate, candidates)):
            if tested not in peaks:
                peaks[tested] = quick_peak_bytes(tested)
            if peaks[tested] <= room:
                break
            too_big.append(tested)
        if peaks[candidate] <= room:
            return Chosen(candidate, fits=True, tried=tried)
    return Chosen(min(peaks, key=lambda one: peaks[one]), fits=False, tried=len(candidates))


def _least_hungry(case: TrainingCase, candidates: Sequence[TrainingCase]) -> TrainingCase:
    """Of the candidates that differ only in micro-batch and recomputation, the one that needs the least."""
    kind = [one for one in candidates if _needs_at_least(case, one)]
    return min(kind, key=lambda one: (one.micro_batch, not one.gradient_checkpointing))


def _needs_at_least(case: TrainingCase, other: TrainingCase) -> bool:
    """Whether `case` differs from one that is too big only by a larger micro-batch or less recomputation."""
    if case.micro_batch < other.micro_batch or (
        case.gradient_checkpointing and not other.gradient_checkpointing
    ):
        return False
    same = replace(case, micro_batch=other.micro_batch, gradient_checkpointing=other.gradient_checkpointing)
    return same == other
