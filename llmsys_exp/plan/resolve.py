"""Fills in every `auto` of a configuration and keeps why.

What the user sets stays as set. The open memory settings are searched together by the planner; the
rest follows from the hardware and the batch arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Device
from llmsys_exp.config.tree import copy_of
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.batch import micro_batch_options, settle_batch
from llmsys_exp.plan.budget import budget_bytes
from llmsys_exp.plan.case import CPU, planner_case, world_size
from llmsys_exp.plan.case_mlp import is_mlp
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.plan.settling import (
    Choice,
    record_chosen,
    settle_bucket,
    settle_dtype,
    settle_optimizer,
    speed_is_forecast,
)
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.plan.unknown import Unknown, is_unknown_model, settle_unknown
from planner.choose import axes_of, choose, option_of
from planner.grid.structures import structures
from planner.search import Room
from planner.units import GIB
from planner.verdict import judge


@dataclass(frozen=True)
class Plan:
    """A configuration without `auto`, the reasons, and what it will need."""

    config: Config
    choices: tuple[Choice, ...]
    forecast: planner.Forecast | None
    """None where nothing is forecast: a family that no formula knows, where it cannot be simulated."""
    verdict: planner.Verdict | None
    """None without a forecast."""
    step_s: float | None = None
    """Estimate; None for a perceptron, and on a CPU that is not calibrated: their speed is not forecast."""
    tokens_per_s: float | None = None
    why_not: str = ""
    """Why nothing is forecast."""

    @property
    def known(self) -> tuple[planner.Forecast, planner.Verdict]:
        """Forecast and verdict, for whoever cannot go on without.

        Raises:
            UserError: where nothing is forecast.
        """
        if self.forecast is None or self.verdict is None:
            raise UserError(
                "Nothing is forecast for this job",
                why=self.why_not,
                do="Plan it for a GPU on which its code can be simulated",
            )
        return self.forecast, self.verdict


@dataclass(frozen=True)
class Settled:
    """A configuration without `auto` and the job it stands for, not yet forecast."""

    config: Config
    choices: tuple[Choice, ...]
    case: planner.TrainingCase
    budget_bytes: int | None

    @property
    def key(self) -> tuple[Any, ...]:
        """What forecast and verdict depend on: points that share it need one forecast."""
        return self.case, self.config.hardware.gpus_per_node, self.budget_bytes


def resolve(config: Config, *, tell: Callable[[str], None] = lambda text: None) -> Plan:
    """Choose every open setting and forecast the result: by formula, or by simulation.

    Args:
        config: with `auto` in it or without.
        tell: hears what is simulated, which takes seconds.

    Raises:
        ConfigError: naming everything that contradicts or is unknown.
        UserError: where nothing can be forecast, and the gate does not let that pass.
    """
    if is_unknown_model(config):
        return plan_of(settle_unknown(config, Simulations(tell)))
    return forecast_settled(settle(config))


def plan_of(unknown: Unknown) -> Plan:
    """Return the plan of a model that no formula knows."""
    forecast = None if unknown.simulation is None else unknown.simulation.forecast
    return Plan(unknown.config, unknown.choices, forecast, unknown.verdict, why_not=unknown.why_not)


@dataclass(frozen=True)
class Opened:
    """A job whose hardware and types are settled and whose memory settings are still open."""

    config: Config
    choices: list[Choice]
    case: planner.TrainingCase
    free: dict[str, tuple[Any, ...]]
    room: Room
    dtype: str


def open_job(config: Config) -> Opened:
    """Check a configuration and list what it leaves open; raises as `resolve` does."""
    check_settings(config)
    config = copy_of(config)
    choices: list[Choice] = []
    dtype = settle_dtype(config, choices)
    settle_optimizer(config, choices)
    case = planner_case(config, dtype=dtype)
    case = settle_bucket(config, case, choices)
    budget = budget_bytes(config, case)
    if budget is not None and config.hardware.gpu != CPU and _wants_expandable(config):
        case = replace(case, expandable_segments=True)
    free = _open_settings(config)
    _check_consistent(case, free)
    return Opened(config, choices, case, free, room_of(config, budget), dtype)


def _check_consistent(case: planner.TrainingCase, free: dict[str, tuple[Any, ...]]) -> None:
    """Refuse what is set where none of the open settings goes with it."""
    if next(structures(case, axes_of(free)), None) is None:
        raise ConfigError(
            [
                UserError(
                    "No value of the open settings goes with those that are set",
                    where="method, zero.stage, offload.optimizer and offload.param",
                    why="Offloaded weights need zero.stage=3, an offloaded optimizer and no quantised base",
                    do="Set the offload to none or auto, or zero.stage to auto",
                )
            ]
        )


def settle(config: Config) -> Settled:
    """Choose every open setting; raises as `resolve` does."""
    job = open_job(config)
    config, choices = job.config, job.choices
    chosen = choose(job.case, job.free, room=job.room, global_batch=config.training.global_batch)
    record_chosen(config, chosen, choices, job.room.gpu_bytes)
    settle_batch(config, chosen.case.micro_batch, choices, make=Choice)
    case = planner_case(config, dtype=job.dtype)
    return Settled(config, tuple(choices), case, job.room.gpu_bytes)


def room_of(config: Config, budget: int | None) -> Room:
    """What a GPU and a node may take; main memory counts where the configuration says how much there is."""
    host_gib = None if config.hardware.gpu == CPU else config.hardware.host_memory_gib
    host = None if host_gib is None else int(host_gib * GIB)
    return Room(budget, host, config.hardware.gpus_per_node)


def forecast_settled(settled: Settled) -> Plan:
    """Forecast a settled job and compare it with its budget."""
    case, config = settled.case, settled.config
    forecast = planner.forecast_training(case, ranks_per_node=config.hardware.gpus_per_node)
    limit = settled.budget_bytes if settled.budget_bytes is not None else forecast.peak_reserved_bytes
    verdict = judge(case, forecast, budget_bytes=limit)
    measured = case.calibration is not None and case.calibration.speed_factor is not None
    if not speed_is_forecast(config) and (is_mlp(config) or not measured):
        return Plan(config, settled.choices, forecast, verdict)
    speed = option_of(case)
    return Plan(config, settled.choices, forecast, verdict, speed.step_s, speed.tokens_per_s)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for `job.json` and `--json`."""
    return {
        "choices": [vars(choice) for choice in plan.choices],
        "forecast": None if plan.forecast is None else plan.forecast.to_dict(),
        "verdict": None if plan.verdict is None else plan.verdict.to_dict(),
        "speed": _speed_to_dict(plan),
        **({"not_forecast": plan.why_not} if plan.why_not else {}),
    }


def _speed_to_dict(plan: Plan) -> dict[str, float] | None:
    if plan.step_s is None or plan.tokens_per_s is None:
        return None
    return {"step_s": round(plan.step_s, 4), "tokens_per_s": round(plan.tokens_per_s, 1)}


def _wants_expandable(config: Config) -> bool:
    return config.training.expandable_segments in (AUTO, True)


def _open_settings(config: Config) -> dict[str, tuple[Any, ...]]:
    """Open field of the planner's case -> values to try."""
    on_cpu = config.hardware.gpu == CPU
    free: dict[str, tuple[Any, ...]] = {"micro_batch": micro_batch_options(config)}
    if config.zero.stage == AUTO:
        free["zero_stage"] = (0, 1, 2, 3) if world_size(config) > 1 or not on_cpu else (0,)
    if config.offload.optimizer is Device.auto:
        free["offload_optimizer"] = ("none",) if on_cpu else ("none", "cpu")
    if config.offload.param is Device.auto:
        free["offload_param"] = ("none",) if on_cpu else ("none", "cpu")
    if config.training.gradient_checkpointing == AUTO:
        free["gradient_checkpointing"] = (False,) if is_mlp(config) else (False, True)
    return free
