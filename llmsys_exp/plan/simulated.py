"""Chooses what is open in a job by a few simulations, where no formula knows its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Device
from llmsys_exp.config.tree import copy_of, put_at, value_at
from llmsys_exp.plan.batch import micro_batch_options, settle_batch
from llmsys_exp.plan.budget import budget_bytes
from llmsys_exp.plan.case import hf_config, world_size
from llmsys_exp.plan.settling import Choice, shown
from llmsys_exp.plan.simulations import Simulations, case_of
from planner.errors import CaseError, NotSimulated
from planner.forecasting import device_extra_bytes
from planner.units import GIB, gib
from planner.verdict import judge

if TYPE_CHECKING:
    from planner.simulate.tier import Simulation

STAGE, OPTIMIZER, PARAM = "zero.stage", "offload.optimizer", "offload.param"
RECOMPUTE, MICRO = "training.gradient_checkpointing", "training.micro_batch"
Shape = Mapping[str, Any]
"""Setting -> value, of those that say where memory lies and what is recomputed."""
NOT_KNOWN = "{} is not known to the formula: simulated"
MOST_CHECKS = 2
"""Micro-batches that are simulated beside the two that a line is drawn through."""


def _shape(stage: int, optimizer: Device, param: Device, *, recompute: bool) -> Shape:
    return {STAGE: stage, OPTIMIZER: optimizer, PARAM: param, RECOMPUTE: recompute}


ON_ONE = (
    _shape(0, Device.none, Device.none, recompute=False),
    _shape(0, Device.none, Device.none, recompute=True),
    _shape(2, Device.cpu, Device.none, recompute=True),
    _shape(3, Device.cpu, Device.cpu, recompute=True),
)
ON_SEVERAL = (
    _shape(2, Device.none, Device.none, recompute=False),
    _shape(2, Device.none, Device.none, recompute=True),
    _shape(3, Device.none, Device.none, recompute=True),
    _shape(3, Device.cpu, Device.cpu, recompute=True),
)
"""What is tried, the fastest first; each costs seconds, so there are few."""


def usual_ways(ranks: int) -> tuple[Shape, ...]:
    """Return the usual ways of a job, the fastest first."""
    return ON_SEVERAL if ranks > 1 else ON_ONE


class Search:
    """Simulations of one job under several settings.

    Args:
        config: the job; what follows from hardware alone is settled.
        simulations: runs them.
    """

    def __init__(self, config: Config, simulations: Simulations) -> None:
        self._config, self._simulations = config, simulations
        self._budget: int | None = None
        self._tried = 0
        self._not_known = NOT_KNOWN.format(hf_config(config)["model_type"])

    def trained_numel(self) -> int:
        """Count what is trained; raises CaseError as `run` does."""
        return self._simulations.trained_numel(self._config)

    def run(self, choices: list[Choice]) -> tuple[Simulation, planner.Verdict]:
        """Choose, write what was chosen into the configuration, and return how it does.

        Raises:
            CaseError: for settings that contradict each other.
            NotSimulated: for what the simulation does not take, and what fails in it.
        """
        shapes, micros = self._shapes(), sorted(micro_batch_options(self._config))
        self._budget = budget_bytes(self._config, case_of(self._with(shapes[0], micros[0])))
        shape, found = self._first_that_fits(shapes, micros[0])
        micro, found = self._largest(shape, micros, found)
        self._record(shape, choices, fits=self._judged(found).fits)
        settle_batch(self._config, micro, choices, make=Choice)
        return found, self._verdict(found)

    def _shapes(self) -> list[Shape]:
        """What is given, with what is open as each of the usual ways has it, where that goes together."""
        shapes: list[Shape] = []
        refused: list[CaseError] = []
        for way in usual_ways(world_size(self._config)):
            given = {key: value_at(self._config, key) for key in way if not is_open(self._config, key)}
            shape = {**way, **given}
            if shape in shapes:
                continue
            try:
                case_of(self._with(shape, None))
                shapes.append(shape)
            except NotSimulated:
                raise
            except CaseError as error:
                refused.append(error)
        if not shapes:
            raise refused[0]
        return shapes

    def _first_that_fits(self, shapes: Sequence[Shape], micro: int) -> tuple[Shape, Simulation]:
        """The first whose whole band fits, else the first that fits, else the one that needs least."""
        done: list[tuple[Shape, Simulation]] = []
        for shape in shapes:
            found = self._simulated(shape, micro)
            done.append((shape, found))
            if self._judged(found).label == "fits":
                return shape, found
        fitting = [one for one in done if self._judged(one[1]).fits]
        return fitting[0] if fitting else min(done, key=lambda one: one[1].forecast.required_bytes)

    def _largest(self, shape: Shape, micros: Sequence[int], smallest: Simulation) -> tuple[int, Simulation]:
        """The largest micro-batch whose whole band fits: what two need says which are worth simulating."""
        best = (micros[0], smallest)
        if len(micros) == 1 or not self._judged(smallest).fits:
            return best
        second = self._simulated(shape, micros[1])
        if self._judged(second).label != "fits":
            return best
        best = (micros[1], second)
        need, more = smallest.forecast.required_bytes, second.forecast.required_bytes
        slope = (more - need) / (micros[1] - micros[0])
        high = second.forecast.band_bytes("required")[1] / more
        wanted = [
            micro
            for micro in micros[:1:-1]
            if self._budget is None or high * (need + slope * (micro - micros[0])) <= self._budget
        ]
        for micro in wanted[:MOST_CHECKS]:
            found = self._simulated(shape, micro)
            if self._judged(found).label == "fits":
                return micro, found
        return best

    def _simulated(self, shape: Shape, micro: int) -> Simulation:
        self._simulations.introduce(self._not_known)
        self._tried += 1
        config = self._with(shape, micro)
        tried = {MICRO: micro, **shape}  # in this order: a terminal may cut what comes last
        said = [f"{key}={shown(value)}".lower() for key, value in tried.items() if is_open(self._config, key)]
        found = self._simulations.of(config, " ".join(said) or "the real code on shapes")
        extra = device_extra_bytes(case_of(config))
        notes = (self._not_known, *found.forecast.notes)
        return replace(found, forecast=replace(found.forecast, device_extra_bytes=extra, notes=notes))

    def _verdict(self, found: Simulation) -> planner.Verdict:
        limit = found.forecast.peak_reserved_bytes if self._budget is None else self._budget
        return judge(found.case, found.forecast, budget_bytes=limit, remedy=False)

    def _judged(self, found: Simulation) -> planner.Verdict:
        """The verdict, main memory included where the configuration says how much there is."""
        verdict = self._verdict(found)
        host_gib = self._config.hardware.host_memory_gib
        if host_gib is not None and found.forecast.host_peak_bytes > host_gib * GIB:
            return replace(verdict, fits=False, label="does not fit")
        return verdict

    def _with(self, shape: Shape, micro: int | None) -> Config:
        """The job with these settings; `None` leaves the batch as it is."""
        config = copy_of(self._config)
        for key, value in shape.items():
            put_at(config, key, value)
        if micro is not None:
            settle_batch(config, micro, [], make=Choice)
        return config

    def _record(self, shape: Shape, choices: list[Choice], *, fits: bool) -> None:
        room = "; no limit is known"
        if self._budget is not None:
            room = f" that fits the {gib(self._budget):.1f} GiB of a rank"
        why = f"the first of the usual ways{room}; simulated: {self._tried}"
        if not fits:
            why = f"none of {self._tried} simulated settings fits; this one needs the least"
        for key, value in shape.items():
            given = not is_open(self._config, key)
            put_at(self._config, key, value)
            choices.append(Choice(key, shown(value), "as set" if given else why, given))


def is_open(config: Config, key: str) -> bool:
    """Whether a setting is `auto`."""
    return value_at(config, key) in (AUTO, Device.auto)
