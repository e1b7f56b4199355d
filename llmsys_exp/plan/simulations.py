"""Simulations of one process: what is simulated now is told, and of many jobs each case is simulated once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import planner
from llmsys_exp.calibrate.apply import calibration_of
from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config
from llmsys_exp.plan.case import case_content, world_size
from planner.errors import CaseError

if TYPE_CHECKING:
    from planner.simulate.tier import Simulation


def _nobody(text: str) -> None:
    """Hear nothing."""


class Simulations:
    """Runs simulations.

    Args:
        tell: hears what is simulated now, a line each.
        rank: whose memory is simulated.
        keep: whether many jobs are planned: what came of each case is kept, without the run behind it, and
            not simulated again.

    Attributes:
        count: how many were run.
    """

    def __init__(self, tell: Callable[[str], None] = _nobody, *, rank: int = 0, keep: bool = False) -> None:
        self.count = 0
        self._tell, self._rank, self._keep = tell, rank, keep
        self._known: dict[str, Simulation | CaseError] = {}
        self._counted: dict[str, int] = {}
        self._told: set[str] = set()

    def say(self, text: str) -> None:
        """Tell what the next ones are for."""
        self._tell(text)

    def introduce(self, text: str) -> None:
        """Tell something that need not be told again."""
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def of(self, config: Config, said: str) -> Simulation:
        """Simulate a job that leaves nothing open.

        Args:
            config: the job.
            said: its settings, for who waits.

        Raises:
            CaseError: for settings that contradict each other.
            NotSimulated: for what the simulation does not take, and what fails in it.
        """
        content, key = _content_of(config, self._rank)
        known = self._known.get(key)
        if known is None:
            self._tell(f"simulating {said} ...")
            self.count += 1
            known = self._run(content, config)
            if self._keep:
                self._known[key] = known
        if isinstance(known, CaseError):
            raise known
        return known

    def trained_numel(self, config: Config) -> int:
        """Count the elements that a job trains; raises as `of` does."""
        from planner.simulate.tier import trained_numel

        content, key = _content_of(config, self._rank)
        if key not in self._counted:
            self._counted[key] = trained_numel(content, **own_code(config))
        return self._counted[key]

    def _run(self, content: dict[str, Any], config: Config) -> Simulation | CaseError:
        from planner.simulate.tier import simulation

        ranks = config.hardware.gpus_per_node
        try:
            found = simulation(content, ranks_per_node=ranks, rank=self._rank, **own_code(config))
        except CaseError as error:
            return error
        return replace(found, forecast=found.forecast.kept(), run=None) if self._keep else found


def _content_of(config: Config, rank: int) -> tuple[dict[str, Any], str]:
    """The case of a job, and a text that tells it from others."""
    content = case_content(config, dtype=config.training.dtype.value)
    own, ranks = own_code(config), config.hardware.gpus_per_node
    return content, json.dumps([content, ranks, rank, own], sort_keys=True, default=str)


def case_of(config: Config) -> planner.TrainingCase:
    """Return the case of a configuration; its architecture is sizes alone, and stands for no graph.

    Raises:
        CaseError: for settings that contradict each other.
        NotSimulated: for what cannot be simulated here.
    """
    from planner.simulate.tier import readable

    dtype = config.training.dtype.value
    case, _ = readable(case_content(config, dtype=dtype), **own_code(config))
    measured = calibration_of(config.hardware.gpu, dtype=dtype, ranks=world_size(config))
    return case if measured is None else replace(case, calibration=measured)


def own_code(config: Config) -> dict[str, Any]:
    """Where a model may have brought code of its own, and whether it may be run."""
    path = config.model.path
    return {
        "folder": None if path is None else shipped_path(path),
        "trust": config.model.trust_remote_code,
    }
