"""Settings for a family that no formula knows: of the usual ways, the first that fit, each simulated.

Speed is not forecast for such a model, so nothing is ranked: the ways stand as they usually do, the fastest
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Config, MethodKind
from llmsys_exp.config.tree import copy_of, put_at, value_at
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.case import world_size
from llmsys_exp.plan.settling import shown
from llmsys_exp.plan.simulated import MICRO, is_open, usual_ways
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.plan.unknown import Unknown, settle_unknown
from planner.forecast import Forecast, Verdict
from planner.units import GIB, gib

SETTINGS = (
    "zero.stage", "offload.optimizer", "offload.param", MICRO, "training.grad_accum",
    "training.gradient_checkpointing", "training.expandable_segments",
)  # fmt: skip
"""What is recommended."""
WAY = ("zero.stage", "offload.optimizer", "offload.param", "training.gradient_checkpointing")


@dataclass(frozen=True)
class Way:
    """One way of running a job, with the largest micro-batch that fits."""

    config: Config
    forecast: Forecast
    verdict: Verdict

    @property
    def fits(self) -> bool:
        """Whether it does, in main memory too where the configuration says how much there is."""
        host_gib = self.config.hardware.host_memory_gib
        return self.verdict.fits and (host_gib is None or self.forecast.host_peak_bytes <= host_gib * GIB)

    @property
    def label(self) -> str:
        """The word of its verdict."""
        return self.verdict.label if self.fits else "does not fit"

    def settings(self) -> dict[str, Any]:
        """Setting -> value, as an experiment writes them."""
        return {key: shown(value_at(self.config, key)) for key in SETTINGS}


@dataclass(frozen=True)
class SimulatedAdvice:
    """What was found for one method; `ways` that fit, or the one that needs least."""

    config: Config
    ways: tuple[Way, ...] = ()
    refused: str = ""
    tried: int = 0

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.method.kind.value

    @property
    def fitting(self) -> tuple[Way, ...]:
        """The ways that fit."""
        return tuple(way for way in self.ways if way.fits)

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return bool(self.fitting)

    def chosen(self) -> tuple[dict[str, Any], str]:
        """The settings of the first way that fits, and a comment on it."""
        way = self.fitting[0]
        settings = {**way.settings(), "training.dtype": way.config.training.dtype.value}
        return settings, (
            f"Recommended: simulated, {way.label} in the memory of {way.config.hardware.gpu}; the first of "
            "the usual ways, as speed is not forecast."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        if not self.ways:
            return {"method": self.method, "refused": self.refused}
        budget = self.ways[0].verdict.budget_bytes
        return {
            "method": self.method,
            "budget_gib": round(gib(budget), 3),
            "simulated": self.tried,
            "answers": [_answer(way) for way in self.fitting],
            "smallest": None if self.fitting else _answer(self.ways[0]),
        }


def _answer(way: Way) -> dict[str, Any]:
    required = way.forecast.required_bytes
    return {
        "settings": way.settings(),
        "verdict": way.label,
        "needs_gib": round(gib(required), 3),
        "headroom_gib": round(gib(way.verdict.budget_bytes - required), 3),
        "host_gib": round(gib(way.forecast.host_peak_bytes), 3),
        "step_s": None,
        "tokens_per_s": None,
    }


def recommend_simulated(
    overrides: Sequence[str], methods: Sequence[MethodKind | None], *, best: int, simulations: Simulations
) -> list[SimulatedAdvice]:
    """Simulate the usual ways of each method until enough of them fit.

    Args:
        overrides: the job.
        methods: what is looked at; None: the one that is given.
        best: ways of each method.
        simulations: runs them.

    Raises:
        UserError: when no method can be planned at all, with the reasons.
    """
    found = [_of_method(overrides, method, best, simulations) for method in methods]
    if not any(one.ways for one in found):
        raise ConfigError([UserError(reason) for reason in dict.fromkeys(one.refused for one in found)])
    return found


def _of_method(
    overrides: Sequence[str], method: MethodKind | None, best: int, simulations: Simulations
) -> SimulatedAdvice:
    config = compose_config([*overrides, *([] if method is None else [f"method={method.value}"])])
    before, refused = simulations.count, ""
    ways: list[Way] = []
    for asked in _asked(config):
        named = " ".join(f"{key}={shown(value_at(asked, key))}".lower() for key in WAY)
        simulations.say(f"{config.method.kind.value}: {named}")
        try:
            way = _way(settle_unknown(asked, simulations))
        except UserError as error:
            refused = refused or str(error)
            continue
        ways.append(way)
        if sum(one.fits for one in ways) == best:
            break
    fitting = [way for way in ways if way.fits]
    ways = fitting or sorted(ways, key=lambda way: way.forecast.required_bytes)[:1]
    return SimulatedAdvice(config, tuple(ways), refused, simulations.count - before)


def _way(found: Unknown) -> Way:
    if found.simulation is None or found.verdict is None:
        raise UserError(f"nothing is forecast: {found.why_not}")
    return Way(found.config, found.simulation.forecast, found.verdict)


def _asked(config: Config) -> list[Config]:
    """The job with what is open as each of the usual ways has it; each combination once."""
    asked: dict[str, Config] = {}
    for way in usual_ways(world_size(config)):
        changed = copy_of(config)
        for key, value in way.items():
            if is_open(config, key):
                put_at(changed, key, value)
        asked.setdefault(str([value_at(changed, key) for key in way]), changed)
    return list(asked.values())
