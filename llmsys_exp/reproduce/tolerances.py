"""How far a reproduced figure may be from the logged one, with the reason: the one place where that is said.

docs/reproduce.md shows these tables. A difference is relative to the logged figure unless it says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Relation(Enum):
    """How the machine and the software of the new run stand to those of the logged one."""

    same_bits = "same machine and packages, deterministic"
    same_machine = "same machine and packages"
    same_kind = "same kind of GPU or CPU, or other versions of what computes"
    other = "other GPU or CPU"
    other_world = "other number of ranks"
    other_program = "another program"


@dataclass(frozen=True)
class Tolerance:
    """A bound, and why it is where it is."""

    bound: float | None
    """None: shown and not judged."""
    reason: str
    absolute: bool = False

    def allows(self, logged: float, found: float) -> bool | None:
        """Return whether a figure is near enough; None where that is not judged."""
        if self.bound is None:
            return None
        if logged == found or (math.isnan(logged) and math.isnan(found)):
            return True
        return self.distance(logged, found) <= self.bound

    def distance(self, logged: float, found: float) -> float:
        """Return how far apart two figures are, in the terms of the bound."""
        if logged == found or (math.isnan(logged) and math.isnan(found)):
            return 0.0
        if not (math.isfinite(logged) and math.isfinite(found)):
            return math.inf
        gap = abs(found - logged)
        if self.absolute:
            return gap
        return gap / abs(logged) if logged else math.inf

    @property
    def words(self) -> str:
        """As people read it."""
        if self.bound is None:
            return "not judged"
        if self.bound == 0:
            return "exact"
        return f"{self.bound:g}" if self.absolute else f"{100 * self.bound:.3g} %"


_R = Relation
FIRST_LOSS = {
    _R.same_bits: (0.0, 0.0, "every operator gives the same bits"),
    _R.same_machine: (1e-6, 1e-3, "the forward pass adds up in the same order but for a few kernels"),
    _R.same_kind: (1e-5, 2e-3, "other versions pick other kernels, which add up in another order"),
    _R.other: (1e-4, 5e-3, "other tile sizes, and other orders of every sum"),
    _R.other_world: (1e-4, 5e-3, "the loss is added up over other shares of the batch"),
}
"""Relation -> relative bound in fp32, in 16 bit, reason. Of step 1, before any weight has moved."""

LATER_LOSSES = {
    _R.same_bits: (0.0, 0.0, "every operator gives the same bits"),
    _R.same_machine: (1e-4, 1e-2, "gradients are added up by atomics in any order, and steps amplify that"),
    _R.same_kind: (1e-3, 2e-2, "rounding differs from the first step on, and steps amplify it"),
    _R.other: (5e-3, 3e-2, "rounding differs everywhere, and steps amplify it"),
    _R.other_world: (5e-3, 3e-2, "gradients are added up over other shares, and steps amplify it"),
}
"""The same for later steps and evaluations."""

DROPOUT = 4.0
"""Factor on the losses under `other_world` with dropout: each rank draws its own."""

SCORES = {
    _R.same_bits: (0.0, "every operator gives the same bits"),
    _R.same_machine: (0.02, "answers near a tie may fall the other way"),
    _R.same_kind: (0.05, "answers near a tie may fall the other way"),
    _R.other: (0.1, "answers near a tie fall the other way, and the rest of the answer follows"),
    _R.other_world: (0.1, "the trained weights differ in their last digits"),
}
"""Relation -> absolute bound on a task score between 0 and 1, reason."""

ANSWERS = {
    _R.same_bits: (1.0, 1.0, "one batch, the same kernels"),
    _R.same_machine: (0.98, 0.95, "kernels are picked by batch size; an engine may batch otherwise"),
    _R.same_kind: (0.9, 0.6, "near ties fall the other way, and the rest of the answer follows"),
    _R.other: (0.7, 0.3, "rounding differs everywhere; a sampled token is drawn from other odds"),
    _R.other_world: (0.7, 0.3, "the trained weights differ in their last digits"),
}
"""Relation -> least share of equal answers: greedy, sampled; reason."""

PEAK_MEMORY = {
    _R.same_bits: (0.01, "an allocator asked for the same sizes in the same order"),
    _R.same_machine: (0.01, "an allocator asked for the same sizes in the same order"),
    _R.same_kind: (0.03, "other versions ask for other work space"),
    _R.other: (0.1, "kernels of another GPU ask for other work space"),
    _R.other_world: (None, "what a rank holds is another share"),
}
"""Relation -> relative bound on the peak of a GPU's allocator, reason."""

HOST_MEMORY = (0.3, "the system decides when pages come and go; libraries keep caches")
FORECAST = (0.05, "a newer planner may be nearer to the truth; the settings are the same")
ELSEWHERE: dict[str, tuple[float | None, str]] = {
    "steps": (0.0, "follows from rows, batch and epochs"),
    "curve": (0.1, "another program deals the rows in another order and draws other adapters"),
    "step": (None, "the rows of a single step are others"),
    "rate": (1e-3, "of the highest rate, from there on: programs count warm-up by a step more or less"),
    "evaluation": (0.05, "the same rows, after steps over other batches"),
}
"""Figure of another tool's log -> relative bound, reason."""
EXACT = (0.0, "follows from settings and data alone")
RATE_BOUND = (1e-9, "computed from settings alone, in double precision")
SPEED = (None, "other programs on the machine have a say; shown for orientation")


def loss_tolerance(relation: Relation, *, first: bool, dtype: str, dropout: float = 0.0) -> Tolerance:
    """Return the bound on a loss."""
    fp32, half, reason = (FIRST_LOSS if first else LATER_LOSSES)[relation]
    bound = fp32 if dtype == "fp32" else half
    if relation is Relation.other_world and dropout > 0:
        return Tolerance(DROPOUT * bound, f"{reason}; and each rank draws its own dropout")
    return Tolerance(bound, reason)


def score_tolerance(relation: Relation) -> Tolerance:
    """Return the bound on a task score."""
    bound, reason = SCORES[relation]
    return Tolerance(bound, reason, absolute=True)


def memory_tolerance(relation: Relation, *, on_gpu: bool) -> Tolerance:
    """Return the bound on a peak."""
    if not on_gpu and relation is not Relation.other_world:
        return Tolerance(*HOST_MEMORY)
    return Tolerance(*PEAK_MEMORY[relation])


def least_equal_answers(relation: Relation, *, sampled: bool) -> tuple[float, str]:
    """Return the least share of equal answers, and why."""
    greedy, drawn, reason = ANSWERS[relation]
    return (drawn if sampled else greedy), reason
