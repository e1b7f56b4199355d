"""What a configuration must not say: unknown hardware, values out of range, what a CPU or a card lacks."""

from __future__ import annotations

import planner
from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.schema import AUTO, Config, Device, Dtype, MethodKind
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.plan.case import CPU


def check_settings(config: Config) -> None:
    """Refuse values that are out of range or contradict the hardware.

    Raises:
        ConfigError: naming every problem.
    """
    problems: list[UserError] = []
    hardware = config.hardware
    if hardware.gpu not in planner.gpu_names():
        problems.append(unknown_name("GPU", hardware.gpu, planner.gpu_names(), where="hardware.gpu"))
    problems += limit_problems(config)
    problems += _open_or_flag(config)
    problems += _bf16_problem(config)
    problems += _cpu_problems(config)
    if problems:
        raise ConfigError(problems)


def _open_or_flag(config: Config) -> list[UserError]:
    """Settings that take true, false or the word auto."""
    training = config.training
    problems: list[UserError] = []
    for key in ("gradient_checkpointing", "expandable_segments"):
        value = getattr(training, key)
        if not isinstance(value, bool) and value != AUTO:
            problems.append(UserError(f"training.{key} is {value}; it takes true, false or auto"))
    return problems


def _bf16_problem(config: Config) -> list[UserError]:
    name = config.hardware.gpu
    if config.training.dtype is not Dtype.bf16 or name == CPU or name not in planner.gpu_names():
        return []
    gpu = planner.gpu(name)
    if gpu.bf16:
        return []
    return [
        UserError(
            f"training.dtype=bf16 does not run on {gpu.title}",
            where=f"hardware.gpu={name}",
            why=f"Compute capability {gpu.compute_capability} has no bf16 units",
            do="Use training.dtype=fp16 (with loss scaling) or auto",
        )
    ]


def _cpu_problems(config: Config) -> list[UserError]:
    if config.hardware.gpu != CPU:
        return []
    given = {
        "offload.optimizer": config.offload.optimizer,
        "offload.param": config.offload.param,
    }
    problems = [
        UserError(f"{key}={device.value} moves nothing on hardware.gpu=cpu", do=f"Set {key}=none or auto")
        for key, device in given.items()
        if device not in (Device.auto, Device.none)
    ]
    if config.hardware.memory_gib is not None or config.hardware.in_use_gib:
        problems.append(
            UserError(
                "hardware.memory_gib and hardware.in_use_gib are of GPUs",
                where="hardware.gpu=cpu",
                do="Set hardware.host_memory_gib to what the ranks may share",
            )
        )
    if config.method.kind is MethodKind.qlora:
        problems.append(UserError("method.kind=qlora needs a GPU", why="bitsandbytes quantises on the GPU"))
    if config.training.attention == "flash_attention_2":
        problems.append(UserError("training.attention=flash_attention_2 needs a GPU", do="Use sdpa"))
    if config.training.liger:
        problems.append(UserError("training.liger=true needs a GPU", do="Use training.liger=false"))
    return problems
