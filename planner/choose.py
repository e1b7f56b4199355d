"""Chooses the settings a user left open: the fastest combination that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.forecasting import forecast_training
from planner.search import Found, Option, Room, as_listed, options, points, search
from planner.tables import CPU
from planner.training_case import TrainingCase

FEW = 4
"""So many combinations are played as they are listed where there is no speed to rank them by: on the CPU."""


@dataclass(frozen=True)
class Chosen:
    """A setting that fits (or the smallest one, when nothing does) and how far the search went."""

    case: TrainingCase
    fits: bool
    tried: int
    found: Found

    @property
    def ranked(self) -> bool:
        """Whether the combinations were in order of an estimated speed, or as they are listed."""
        return any(answer.tokens_per_s > 0 for answer in self.found.answers)


def choose(
    case: TrainingCase,
    free: Mapping[str, Sequence[Any]],
    *,
    room: Room,
    global_batch: int | None = None,
) -> Chosen:
    """Find the fastest combination of the open settings that stays within the room.

    Args:
        case: the job, with any value in the open fields.
        free: open field -> values it may take; `micro_batch` among them or not.
        room: what a GPU and a node may take.
        global_batch: sequences of a step over all ranks; None: as many as one micro-batch of each rank.
    """
    candidates = _candidates(case, axes_of(free), sizes_of(case, free, global_batch))
    found = search(candidates, room)
    if not found.answers:
        smallest = found.smallest
        return Chosen(smallest.case, False, found.considered, found)
    best = next((a for a in found.answers if a.label == "fits"), found.answers[0])
    return Chosen(best.case, True, found.considered, found)


def _candidates(
    case: TrainingCase, axes: Mapping[str, Sequence[Any]], sizes: list[tuple[int, int]]
) -> list[Option]:
    listed = as_listed(case, axes, sizes)
    if case.architecture.widths or (case.device == CPU and len(listed) <= FEW):
        return listed
    return options([case], axes, sizes)


def axes_of(free: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The open settings that are not sizes."""
    return {name: values for name, values in free.items() if name != "micro_batch"}


def sizes_of(
    case: TrainingCase, free: Mapping[str, Sequence[Any]], global_batch: int | None
) -> list[tuple[int, int]]:
    """Pairs of micro-batch and accumulation that keep the global batch."""
    micros = free.get("micro_batch", (case.micro_batch,))
    if global_batch is None:
        return [(int(micro), case.grad_accum) for micro in micros]
    ranks = case.world_size // case.sequence_parallel
    return [(int(micro), max(1, global_batch // (int(micro) * ranks))) for micro in micros]


def estimate_bytes(case: TrainingCase) -> float:
    """Estimated peak of one setting, engine start included; a perceptron is played, which takes no longer."""
    if case.architecture.widths:
        return float(forecast_training(case).peak_allocated_bytes)
    from planner.grid.estimate import peak_bytes  # numpy, which a plan of one job on the CPU does without

    return float(peak_bytes(case, case.micro_batch, case.seq_len, case.grad_accum))


def option_of(case: TrainingCase) -> Option:
    """Estimates of one setting."""
    return points(case, [(case.micro_batch, case.grad_accum)])[0]
