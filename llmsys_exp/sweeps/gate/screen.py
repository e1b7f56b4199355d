"""Verdicts of many points of training by closed forms, in arrays; what is near the limit is played in full.

Points that share a structure (everything but micro-batch, accumulation and global batch) are estimated
together. An estimate decides where even its largest error would change nothing; the verdict is then that
of `llmsys plan`, which plays every point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmsys_exp.config.limits import setting_problem
from llmsys_exp.config.schema import AUTO, Config
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.batch import micro_batch_options
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.resolve import Opened, open_job
from llmsys_exp.sweeps.gate.margins import surely_fits, surely_not
from llmsys_exp.sweeps.gate.node import node_bytes
from llmsys_exp.sweeps.gate.playing import (
    FITS,
    NEAR,
    NO_FIT,
    Judged,
    Pair,
    Plays,
    Size,
    at_size,
    borders,
    judge,
    neighbour,
    resolved,
)
from planner.choose import FEW, axes_of, sizes_of
from planner.grid.estimate import peak_bytes
from planner.grid.structures import structures
from planner.search import MOST_PLAYS, OFF_BY, PLAYS_FOR_SURE, SHARDING_BONUS, Room
from planner.speed import step_time
from planner.uncertainty import lower_limit_bytes

SIZES = ("training.micro_batch", "training.grad_accum", "training.global_batch")


def judge_structure(config: Config, sizes: Sequence[Size], plays: Plays) -> tuple[list[Judged], Room]:
    """Judge a job at many sizes; returns the room it was given, too.

    Args:
        config: the job; its sizes do not count.
        sizes: what it is judged at.
        plays: how many may be played.
    """
    try:
        job = open_job(at_size(config, (1, 1, None)))
    except UserError as error:
        return [Judged(NO_FIT, refused=str(error))] * len(sizes), Room(None)
    if job.case.architecture.widths:  # a perceptron is played as fast as it is estimated
        return [resolved(at_size(config, size)) for size in sizes], job.room
    judged: list[Judged | None] = []
    asked: list[tuple[Pair, ...]] = []
    sized = at_size(config, (1, 1, None))
    for size in sizes:
        sized.training.micro_batch, sized.training.grad_accum, sized.training.global_batch = size
        try:
            asked.append(_pairs(job, sized))
            judged.append(None)
        except UserError as error:
            asked.append(())
            judged.append(Judged(NO_FIT, refused=str(error)))
    structure = _Structure(job, asked)
    for place, pairs in enumerate(asked):
        if pairs:
            judged[place] = structure.judge(pairs)
    first = [one or structure.near(pairs) for one, pairs in zip(judged, asked, strict=True)]
    near = _Near(structure, config, list(zip(sizes, asked, strict=True)), plays)
    return near.settle(first), job.room


class _Structure:
    """One job with its open settings, estimated at all sizes that are asked for."""

    def __init__(self, job: Opened, asked: Sequence[Sequence[Pair]]) -> None:
        self.job = job
        axes = axes_of(job.free)
        self.closed = not axes
        self.cases = list(structures(job.case, axes))
        pairs = list(dict.fromkeys(pair for one in asked for pair in one))
        self._at = {pair: place for place, pair in enumerate(pairs)}
        micro = np.array([pair[0] for pair in pairs], dtype=np.float64)
        accum = np.array([pair[1] for pair in pairs], dtype=np.float64)
        self._peaks = [peak_bytes(case, micro, case.seq_len, accum) for case in self.cases] if pairs else []
        self._listed = len(self.cases) == 1
        self._ranks: list[Any] = []
        if not self._listed and pairs:
            for case in self.cases:
                bonus = 1 + SHARDING_BONUS * min(case.zero_stage, 2)
                self._ranks.append(step_time(case, micro, case.seq_len, accum).tokens_per_s * bonus)

    def judge(self, pairs: Sequence[Pair]) -> Judged | None:
        """What the estimates say; None where they are too near the limit."""
        limit = self.job.room.gpu_bytes
        candidates = self._candidates(pairs)
        smallest = min(reversed(candidates), key=self._peak)
        if limit is None:
            return self._judged(FITS, candidates[0])
        open_gpu = [one for one in candidates if not surely_not(self.cases[one[0]], self._peak(one), limit)]
        if not open_gpu:
            return self._judged(NO_FIT, smallest)
        roomy = [one for one in open_gpu if self._host_fits(one)]
        if not roomy:
            return self._host(open_gpu[0])
        return self._first_sure(roomy, ranked=not self._listed, limit=limit)

    def near(self, pairs: Sequence[Pair]) -> Judged:
        """What is said of a setting that takes a play."""
        return self._judged(NEAR, self._candidates(pairs)[0])

    def _first_sure(self, candidates: list[tuple[int, Pair]], *, ranked: bool, limit: int) -> Judged | None:
        """As the planner's search would go on: past what does not fit, and a few that may not."""
        unsure = near = 0
        for one in candidates:
            peak = self._peak(one)
            case = self.cases[one[0]]
            if surely_fits(case, peak, limit):
                return self._judged(FITS, one)
            if ranked and peak > limit * (1 + OFF_BY):
                continue
            unsure += 1
            near += peak <= lower_limit_bytes(case, limit)
            if self.closed or near >= PLAYS_FOR_SURE or unsure > MOST_PLAYS - PLAYS_FOR_SURE:
                return None
        return None

    def _candidates(self, pairs: Sequence[Pair]) -> list[tuple[int, Pair]]:
        listed = [(place, pair) for place in range(len(self.cases)) for pair in pairs]
        if self._listed or (self.job.case.device == CPU and len(listed) <= FEW):
            return listed
        return sorted(listed, key=lambda one: -float(self._ranks[one[0]][self._at[one[1]]]))

    def _peak(self, one: tuple[int, Pair]) -> float:
        return float(self._peaks[one[0]][self._at[one[1]]])

    def _judged(self, label: str, one: tuple[int, Pair]) -> Judged:
        case, pair = self.cases[one[0]], one[1]
        return Judged(label, self._peak(one), self.job.room.gpu_bytes, case=case, pair=pair)

    def _host(self, one: tuple[int, Pair]) -> Judged:
        case, room = self.cases[one[0]], self.job.room
        needed = node_bytes(case, one[1], room.ranks_per_node)
        return Judged(NO_FIT, needed, room.host_bytes, "host", "formula", case, one[1])

    def _host_fits(self, one: tuple[int, Pair]) -> bool:
        room = self.job.room
        if room.host_bytes is None:
            return True
        return node_bytes(self.cases[one[0]], one[1], room.ranks_per_node) <= room.host_bytes


def _pairs(job: Opened, config: Config) -> tuple[Pair, ...]:
    """Micro-batch and accumulation that a configuration allows."""
    training = config.training
    given = zip(SIZES, (training.micro_batch, training.grad_accum, training.global_batch), strict=True)
    problems = [problem for key, value in given if (problem := setting_problem(key, value)) is not None]
    if problems:
        raise ConfigError(problems)
    micros = micro_batch_options(config)
    accum = 1 if training.grad_accum == AUTO else int(training.grad_accum)
    case = job.case if accum == job.case.grad_accum else replace(job.case, grad_accum=accum)
    return tuple(sizes_of(case, {"micro_batch": micros}, training.global_batch))


@dataclass
class _Near:
    """Plays what the estimates leave open."""

    structure: _Structure
    config: Config
    sizes: list[tuple[Size, tuple[Pair, ...]]]
    plays: Plays

    def settle(self, judged: list[Judged]) -> list[Judged]:
        """Replace what is near the limit by verdicts, as long as plays are left."""
        near = [place for place, one in enumerate(judged) if one.label == NEAR]
        if self.structure.closed and all(len(self.sizes[place][1]) == 1 for place in near):
            return self._in_order(judged, near)
        for place in near:
            if self.plays.take():
                judged[place] = resolved(at_size(self.config, self.sizes[place][0]))
        return judged

    def _in_order(self, judged: list[Judged], near: list[int]) -> list[Judged]:
        """Nothing is open: of micro-batches in order no more are played than their borders take."""
        by_accum: dict[bool, list[int]] = {}
        for place in near:
            by_accum.setdefault(judged[place].pair[1] > 1, []).append(place)
        for places in by_accum.values():
            places.sort(key=lambda place: judged[place].pair[0])
            first = min(range(len(places)), key=lambda at: self._off(judged[places[at]]))
            found = borders([judged[place].pair for place in places], self._play, neighbour, first=first)
            for place, one in zip(places, found, strict=True):
                judged[place] = one or judged[place]
        return judged

    @staticmethod
    def _off(one: Judged) -> float:
        """How far its estimate is from the limit."""
        return abs(one.needed_bytes - (one.limit_bytes or 0))

    def _play(self, pair: Pair) -> Judged | None:
        """Play a setting that leaves nothing open, and judge it as `planner.verdict` does."""
        if not self.plays.take():
            return None
        room, case = self.structure.job.room, self.structure.cases[0]
        sized = replace(case, micro_batch=pair[0], grad_accum=pair[1])
        return judge(sized, case, room.gpu_bytes, room.ranks_per_node)
