"""Settles what follows from the hardware and the shape alone, and writes down what a search has chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Device, Dtype, Optimizer
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.case_mlp import is_mlp
from planner.choose import Chosen
from planner.network.build import build_network
from planner.units import gib

DEFAULT_BUCKET = 500_000_000
LEAST_BUCKET = 1_000_000


@dataclass(frozen=True)
class Choice:
    """One memory setting: its value, why it has it, and whether the user gave it."""

    key: str
    value: Any
    reason: str
    given: bool


def settle_dtype(config: Config, choices: list[Choice]) -> str:
    """Choose the type that is computed in, and those that follow from it, where they are open."""
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


def settle_optimizer(config: Config, choices: list[Choice]) -> None:
    """Choose the optimizer where it is open."""
    training, on_cpu = config.training, config.hardware.gpu == CPU
    given = training.optimizer is not Optimizer.auto
    if not given:
        training.optimizer = Optimizer.torch_adamw if on_cpu else Optimizer.deepspeed_adamw
    reason = "needs no compiler" if on_cpu else "one kernel a step and no copies; on the CPU when offloaded"
    choices.append(
        Choice("training.optimizer", training.optimizer.value, "as set" if given else reason, given)
    )


def settle_bucket(config: Config, case: planner.TrainingCase, choices: list[Choice]) -> planner.TrainingCase:
    """DeepSpeed allocates the reduce bucket whole, however little is trained."""
    if config.zero.reduce_bucket_size == AUTO:
        size = settle_bucket_size(config, choices, lambda: _trained_numel(replace(case, seq_len=8)))
        return replace(case, zero=replace(case.zero, reduce_bucket_size=size))
    settle_bucket_size(config, choices, lambda: 0)
    return case


def settle_bucket_size(config: Config, choices: list[Choice], trained_numel: Callable[[], int]) -> int:
    """Choose the reduce bucket where it is open; `trained_numel` counts the elements that are trained."""
    if config.zero.reduce_bucket_size != AUTO:
        choices.append(Choice("zero.reduce_bucket_size", config.zero.reduce_bucket_size, "as set", True))
        return int(config.zero.reduce_bucket_size)
    trained = trained_numel()
    size = min(DEFAULT_BUCKET, max(LEAST_BUCKET, trained))
    saved = (DEFAULT_BUCKET - size) * 2
    reason = (
        f"holds all {trained:,} trained weights; the default of 5e8 would take {gib(saved):.2f} GiB more"
        if size < DEFAULT_BUCKET
        else "DeepSpeed's default; more is trained than one bucket holds"
    )
    config.zero.reduce_bucket_size = size
    choices.append(Choice("zero.reduce_bucket_size", size, reason, False))
    return size


@lru_cache(maxsize=64)
def _trained_numel(case: planner.TrainingCase) -> int:
    """Elements that are trained; jobs of a sweep that differ in lengths share them."""
    return sum(p.numel for p in build_network(case).parameters() if p.trainable)


def record_chosen(config: Config, chosen: Chosen, choices: list[Choice], budget: int | None) -> None:
    """Write what was chosen into the configuration, each with its reason."""
    case, training = chosen.case, config.training
    why = _why(config, chosen, budget)
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
        choices.append(Choice(key, shown(final), "as set" if given else why, given))
    settle_expandable(config, choices)


def shown(value: Any) -> Any:
    """Return the value of a setting as a choice holds it."""
    return value.value if isinstance(value, Device) else value


def speed_is_forecast(config: Config) -> bool:
    """Whether there is a forecast of speed: none on the CPU, and none for a perceptron."""
    return config.hardware.gpu != CPU and not is_mlp(config)


def _why(config: Config, chosen: Chosen, budget: int | None) -> str:
    """Say what put this combination first, which is no speed where none is forecast."""
    if not chosen.fits:
        return f"none of {chosen.tried} combinations fits; this one needs the least"
    best = "the one with the least work" if chosen.ranked else "the first"
    if speed_is_forecast(config):
        best = "the fastest"
    which = f"{best} of {chosen.tried} combinations" if chosen.tried > 1 else "the only combination"
    return (
        f"{which}; no limit is known"
        if budget is None
        else f"{which} that fits the {gib(budget):.1f} GiB of a rank"
    )


def settle_expandable(config: Config, choices: list[Choice]) -> None:
    """Choose whether the allocator's segments can grow, where it is open."""
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
