"""Finds the fastest settings that fit: ranks a grid by estimated speed, then plays the best ones in full.

The grid (`planner/grid`) estimates thousands of points at once; what is answered has been played
(`planner/forecasting.py`), so an estimate that was off costs time and never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.forecast import Forecast
from planner.forecasting import forecast_training
from planner.grid.structures import structures
from planner.training_case import TrainingCase
from planner.uncertainty import lower_limit_bytes

OFF_BY = 0.06
"""An estimate this share above the budget is not worth playing (benchmarks/grid_error.py)."""
MOST_PLAYS = 24
PLAYS_FOR_SURE = 4  # beyond a tight answer, to find one whose whole band fits
SHARDING_BONUS = 1e-3  # of equals, take the one that shards more: it costs nothing and leaves room
Sizes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Option:
    """One point of the grid: estimates only; zeros where nothing was estimated."""

    case: TrainingCase
    peak_bytes: float = 0.0
    step_s: float = 0.0
    tokens_per_s: float = 0.0

    @property
    def rank(self) -> float:
        """What options are ordered by, best first."""
        return self.tokens_per_s * (1 + SHARDING_BONUS * min(self.case.zero_stage, 2))


@dataclass(frozen=True)
class Answer:
    """A setting that was played in full and fits."""

    case: TrainingCase
    forecast: Forecast
    step_s: float
    tokens_per_s: float
    label: str


@dataclass(frozen=True)
class Miss:
    """A faster setting that does not fit."""

    option: Option
    where: str
    forecast: Forecast | None = None
    """None where its estimate was too far above to play it."""

    @property
    def needs_bytes(self) -> int:
        """What it would take: by its forecast, or by its estimate where it was not played."""
        if self.forecast is None:
            return int(self.option.peak_bytes)
        return self.forecast.host_peak_bytes if self.where == "host" else self.forecast.required_bytes


@dataclass(frozen=True)
class Found:
    """The answers, fastest first, the faster ones that do not fit, and how far the search went."""

    answers: tuple[Answer, ...]
    misses: tuple[Miss, ...]
    smallest: Option
    considered: int
    played: int


@dataclass(frozen=True)
class Room:
    """What one GPU's allocator and the main memory of a node may take; None: not limited."""

    gpu_bytes: int | None
    host_bytes: int | None = None
    ranks_per_node: int = 1


def options(bases: Sequence[TrainingCase], axes: Mapping[str, Sequence[Any]], sizes: Sizes) -> list[Option]:
    """Every consistent combination with its estimates, fastest first.

    Args:
        bases: jobs that differ in what no axis says, such as the method.
        axes: field of `TrainingCase` -> values to try.
        sizes: pairs of micro-batch and accumulation.
    """
    found: list[Option] = []
    for base in bases:
        for structure in structures(base, axes):
            found += points(structure, sizes)
    return sorted(found, key=lambda option: -option.rank)


def as_listed(case: TrainingCase, axes: Mapping[str, Sequence[Any]], sizes: Sizes) -> list[Option]:
    """Every consistent combination in the order of its values, without estimates."""
    return [
        Option(replace(structure, micro_batch=micro, grad_accum=accum))
        for structure in structures(case, axes)
        for micro, accum in sizes
    ]


def points(case: TrainingCase, sizes: Sizes) -> list[Option]:
    """Estimates of one structure at each pair of micro-batch and accumulation."""
    import numpy as np  # a plan of one job on the CPU does without

    from planner.grid.estimate import peak_bytes
    from planner.speed import step_time

    micro = np.array([m for m, _ in sizes], dtype=np.float64)
    accum = np.array([a for _, a in sizes], dtype=np.float64)
    peaks = peak_bytes(case, micro, case.seq_len, accum)
    time = step_time(case, micro, case.seq_len, accum)
    return [
        Option(replace(case, micro_batch=m, grad_accum=a), float(peak), float(seconds), float(speed))
        for (m, a), peak, seconds, speed in zip(sizes, peaks, time.seconds, time.tokens_per_s, strict=True)
    ]


def search(candidates: Sequence[Option], room: Room, *, wanted: int = 1) -> Found:
    """Play candidates in order of speed until `wanted` of them fit.

    Args:
        candidates: fastest first, at least one.
        room: the limits.
        wanted: answers of different kinds; tight ones count when nothing surer is near.
    """
    answers: list[Answer] = []
    misses: list[Miss] = []
    played = 0
    last = MOST_PLAYS
    for option in candidates:
        if sum(answer.label == "fits" for answer in answers) >= wanted or played >= last:
            break
        if room.gpu_bytes is not None and option.peak_bytes > room.gpu_bytes * (1 + OFF_BY):
            misses.append(Miss(option, "GPU"))
            continue
        if wanted > 1 and any(kind(option.case) == kind(answer.case) for answer in answers):
            continue
        if _hopeless(option, misses) or (len(answers) >= wanted and not _surely(option, room)):
            continue
        played += 1
        outcome = _play(option, room)
        if isinstance(outcome, Answer):
            answers.append(outcome)
            if len(answers) == wanted:
                last = min(last, played + PLAYS_FOR_SURE)
        else:
            misses.append(outcome)
    smallest = min(reversed(candidates), key=lambda option: option.peak_bytes)
    return Found(tuple(answers), tuple(misses), smallest, len(candidates), played)


def _surely(option: Option, room: Room) -> bool:
    """Whether the estimate leaves room for the whole band."""
    return room.gpu_bytes is None or option.peak_bytes <= lower_limit_bytes(option.case, room.gpu_bytes)


def kind(case: TrainingCase) -> TrainingCase:
    """What is left of a job without its batch, and without the stage where that hardly changes speed."""
    stage = 3 if case.zero_stage == 3 else 0
    return replace(case, micro_batch=1, grad_accum=1, zero_stage=stage)


def _same_kind(case: TrainingCase, other: TrainingCase) -> bool:
    """Whether two jobs differ in their batch only."""
    return case == replace(other, micro_batch=case.micro_batch, grad_accum=case.grad_accum)


def _hopeless(option: Option, misses: Sequence[Miss]) -> bool:
    """Whether a played miss of the same kind had a smaller or equal micro-batch."""
    return any(
        miss.forecast is not None
        and miss.option.case.micro_batch <= option.case.micro_batch
        and _same_kind(option.case, miss.option.case)
        for miss in misses
    )


def _play(option: Option, room: Room) -> Answer | Miss:
    forecast = forecast_training(option.case, ranks_per_node=room.ranks_per_node)
    if room.host_bytes is not None and forecast.host_peak_bytes > room.host_bytes:
        return Miss(option, "host", forecast)
    limit = room.gpu_bytes
    if limit is not None and not forecast.gets_through(limit):
        return Miss(option, "GPU", forecast)
    surely = limit is None or forecast.gets_through(lower_limit_bytes(option.case, limit))
    label = "fits" if surely else "tight"
    return Answer(option.case, forecast, option.step_s, option.tokens_per_s, label)
