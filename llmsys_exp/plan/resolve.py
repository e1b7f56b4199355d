"""Fills in every `auto` of a configuration and keeps why.

What the user sets stays as set. The open memory settings are searched together by the planner; the
rest follows from the hardware and the batch arithmetic.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Device, Dtype, Optimizer
from llmsys_exp.plan.batch import micro_batch_options, settle_batch
from llmsys_exp.plan.budget import budget_bytes
from llmsys_exp.plan.case import CPU, planner_case, world_size
from llmsys_exp.plan.case_mlp import is_mlp
from llmsys_exp.plan.checks import check_settings
from planner.choose import Chosen, choose, option_of
from planner.network.build import build_network
from planner.search import Room
from planner.units import GIB, gib
from planner.verdict import judge

DEFAULT_BUCKET = 500_000_000
LEAST_BUCKET = 1_000_000


@dataclass(frozen=True)
class Choice:
    """One memory setting: its value, why it has it, and whether the user gave it."""

    key: str
    value: Any
    reason: str
    given: bool


@dataclass(frozen=True)
class Plan:
    """A configuration without `auto`, the reasons, and what it will need."""

    config: Config
    choices: tuple[Choice, ...]
    forecast: planner.Forecast
    verdict: planner.Verdict
    step_s: float | None = None
    """Estimate; None on the CPU and for a perceptron, whose speed is not forecast."""
    tokens_per_s: float | None = None


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


def resolve(config: Config) -> Plan:
    """Choose every open setting and forecast the result.

    Raises:
        ConfigError: naming everything that contradicts or is unknown.
    """
    return forecast_settled(settle(config))


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
    config = deepcopy(config)
    choices: list[Choice] = []
    dtype = _dtype(config, choices)
    _settle_optimizer(config, choices)
    case = planner_case(config, dtype=dtype)
    case = _settle_bucket(config, case, choices)
    budget = budget_bytes(config, case)
    if budget is not None and config.hardware.gpu != CPU and _wants_expandable(config):
        case = replace(case, expandable_segments=True)
    return Opened(config, choices, case, _open_settings(config), room_of(config, budget), dtype)


def settle(config: Config) -> Settled:
    """Choose every open setting; raises as `resolve` does."""
    job = open_job(config)
    config, choices = job.config, job.choices
    chosen = choose(job.case, job.free, room=job.room, global_batch=config.training.global_batch)
    _record(config, chosen, choices, job.room.gpu_bytes)
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
    if config.hardware.gpu == CPU or is_mlp(config):
        return Plan(config, settled.choices, forecast, verdict)
    speed = option_of(case)
    return Plan(config, settled.choices, forecast, verdict, speed.step_s, speed.tokens_per_s)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for `job.json` and `--json`."""
    return {
        "choices": [vars(choice) for choice in plan.choices],
        "forecast": plan.forecast.to_dict(),
        "verdict": plan.verdict.to_dict(),
        "speed": _speed_to_dict(plan),
    }


def _speed_to_dict(plan: Plan) -> dict[str, float] | None:
    if plan.step_s is None or plan.tokens_per_s is None:
        return None
    return {"step_s": round(plan.step_s, 4), "tokens_per_s": round(plan.tokens_per_s, 1)}


def _dtype(config: Config, choices: list[Choice]) -> str:
    training, name = config.training, config.hardware.gpu
    given = training.dtype is not Dtype.auto
    if given:
        reason = "as set"
    elif name == CPU:
        training.dtype = Dtype.fp32
        reason = "bf16 is slower than fp32 on most CPUs"
    elif planner.gpu(name).bf16:
        training.dtype = Dtype.bf16
        reason = f"{planner.gpu(name).title} has bf16 units; no loss scaling needed"
    else:
        training.dtype = Dtype.fp16
        reason = f"compute capability {planner.gpu(name).compute_capability} has no bf16 units"
    choices.append(Choice("training.dtype", training.dtype.value, reason, given))
    if config.method.lora.adapter_dtype is Dtype.auto:
        config.method.lora.adapter_dtype = training.dtype
    if training.grad_accum_dtype is Dtype.auto:
        training.grad_accum_dtype = training.dtype
    return training.dtype.value


def _settle_optimizer(config: Config, choices: list[Choice]) -> None:
    training, on_cpu = config.training, config.hardware.gpu == CPU
    given = training.optimizer is not Optimizer.auto
    if not given:
        training.optimizer = Optimizer.torch_adamw if on_cpu else Optimizer.deepspeed_adamw
    reason = "needs no compiler" if on_cpu else "one kernel a step and no copies; on the CPU when offloaded"
    choices.append(
        Choice("training.optimizer", training.optimizer.value, "as set" if given else reason, given)
    )


def _settle_bucket(config: Config, case: planner.TrainingCase, choices: list[Choice]) -> planner.TrainingCase:
    """DeepSpeed allocates the reduce bucket whole, however little is trained."""
    if config.zero.reduce_bucket_size != AUTO:
        choices.append(Choice("zero.reduce_bucket_size", config.zero.reduce_bucket_size, "as set", True))
        return case
    trained = sum(p.numel for p in build_network(case).parameters() if p.trainable)
    size = min(DEFAULT_BUCKET, max(LEAST_BUCKET, trained))
    saved = (DEFAULT_BUCKET - size) * 2
    reason = (
        f"holds all {trained:,} trained weights; the default of 5e8 would take {gib(saved):.2f} GiB more"
        if size < DEFAULT_BUCKET
        else "DeepSpeed's default; more is trained than one bucket holds"
    )
    config.zero.reduce_bucket_size = size
    choices.append(Choice("zero.reduce_bucket_size", size, reason, False))
    return replace(case, zero=replace(case.zero, reduce_bucket_size=size))


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


def _record(config: Config, chosen: Chosen, choices: list[Choice], budget: int | None) -> None:
    """Write what was chosen into the configuration, each with its reason."""
    case, training = chosen.case, config.training
    room = "no limit is known" if budget is None else f"fits the {gib(budget):.1f} GiB of a rank"
    why = f"the fastest of {chosen.tried} combinations that {room}"
    if budget is None:
        why = f"the fastest of {chosen.tried} combinations; {room}"
    if not chosen.fits:
        why = f"none of {chosen.tried} combinations fits; this one needs the least"
    settings = {
        "zero.stage": (config.zero, "stage", case.zero_stage),
        "offload.optimizer": (config.offload, "optimizer", Device(case.offload_optimizer)),
        "offload.param": (config.offload, "param", Device(case.offload_param)),
        "training.gradient_checkpointing": (
            training,
            "gradient_checkpointing",
            case.gradient_checkpointing,
        ),
    }
    for key, (section, name, value) in settings.items():
        given = getattr(section, name) not in (AUTO, Device.auto)
        if not given:
            setattr(section, name, value)
        final = getattr(section, name)
        shown = final.value if isinstance(final, Device) else final
        choices.append(Choice(key, shown, "as set" if given else why, given))
    _record_expandable(config, choices)


def _record_expandable(config: Config, choices: list[Choice]) -> None:
    given = config.training.expandable_segments != AUTO
    if given:
        reason = "as set"
    elif config.hardware.gpu == CPU:
        config.training.expandable_segments = False
        reason = "only CUDA's allocator has segments"
    else:
        config.training.expandable_segments = True
        reason = "less fragmentation: the job runs with less free memory, at no cost in speed"
    choices.append(Choice("training.expandable_segments", config.training.expandable_segments, reason, given))
