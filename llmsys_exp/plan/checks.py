"""What a configuration must not say: unknown hardware, values out of range, what a CPU or a card lacks."""

from __future__ import annotations

import planner
from llmsys_exp.config.limits import limit_problems
from llmsys_exp.config.schema import AUTO, Config, Device, Dtype, MethodKind, Optimizer
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.case_mlp import is_mlp, mlp_problems

GPU_OPTIMIZERS = (Optimizer.lion, Optimizer.adamw_8bit, Optimizer.paged_adamw_8bit, Optimizer.paged_adamw)
"""Optimizers whose kernels are CUDA's alone."""


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
    problems += _method_problems(config)
    problems += mlp_problems(config)
    problems += _nvme_problems(config)
    problems += _evaluation_problems(config)
    problems += _cpu_problems(config)
    if problems:
        raise ConfigError(problems)


def check_inference(config: Config) -> None:
    """Refuse values that are out of range or that the hardware lacks, whatever training would make of them.

    Raises:
        ConfigError: naming every problem.
    """
    name = config.hardware.gpu
    problems = [*limit_problems(config), *_bf16_problem(config)]
    if name not in planner.gpu_names():
        problems.append(unknown_name("GPU", name, planner.gpu_names(), where="hardware.gpu"))
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


def _method_problems(config: Config) -> list[UserError]:
    """Adapters in a type that nothing computes in, and what training the base as well leaves no sense to."""
    lora, dtype = config.method.lora, config.training.dtype
    problems: list[UserError] = []
    if lora.adapter_dtype not in (Dtype.auto, Dtype.fp32, dtype) and dtype is not Dtype.auto:
        problems.append(
            UserError(
                f"method.lora.adapter_dtype={lora.adapter_dtype.value} is neither fp32 nor training.dtype",
                do=f"Set it to fp32, {dtype.value} or auto",
            )
        )
    if lora.train_base:
        for key, given in (("use_dora", lora.use_dora), ("modules_to_save", lora.modules_to_save)):
            if given:
                problems.append(
                    UserError(
                        f"method.lora.train_base goes with plain adapters, not with method.lora.{key}",
                        why="Every weight of the base is trained already",
                        do=f"Leave method.lora.{key} out",
                    )
                )
    return problems


def _evaluation_problems(config: Config) -> list[UserError]:
    """Settings that judge by a held-out loss, and where that comes from."""
    training, data = config.training, config.data
    wants = {
        "training.early_stop_patience": training.early_stop_patience is not None,
        "checkpoint.keep_best": config.checkpoint.keep_best > 0,
    }
    asked = [key for key, wanted in wants.items() if wanted]
    problems = []
    if asked and training.evaluate_every is None:
        problems.append(
            UserError(
                f"{asked[0]} goes by the held-out loss in mid-training, which nothing measures",
                do="Set training.evaluate_every=STEPS",
            )
        )
    has_rows = data.heldout is not None or data.heldout_split > 0 or is_mlp(config)  # it brings test images
    measures = training.evaluate and has_rows
    if training.evaluate_every is not None and not measures:
        problems.append(
            UserError(
                f"training.evaluate_every={training.evaluate_every} has no rows to measure on",
                do="Give data.heldout=FILE or data.heldout_split=0.05, and leave training.evaluate at true",
            )
        )
    return problems


def _nvme_problems(config: Config) -> list[UserError]:
    if Device.nvme not in (config.offload.optimizer, config.offload.param) or config.offload.nvme_path:
        return []
    return [
        UserError(
            "offload to nvme needs a folder",
            where="offload.nvme_path",
            do="Give offload.nvme_path=FOLDER on a fast local disk",
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
    if config.hardware.enforce_memory:
        problems.append(
            UserError("hardware.enforce_memory=true limits the memory of a GPU", do="Set it to false")
        )
    if config.hardware.memory_gib is not None or config.hardware.in_use_gib:
        problems.append(
            UserError(
                "hardware.memory_gib and hardware.in_use_gib are of GPUs",
                where="hardware.gpu=cpu",
                do="Set hardware.host_memory_gib to what the ranks may share",
            )
        )
    if config.method.kind is MethodKind.qlora and config.method.quantization.kind == "bnb":
        problems.append(UserError("method.kind=qlora needs a GPU", why="bitsandbytes quantises on the GPU"))
    if config.training.dtype is Dtype.fp16:
        problems.append(
            UserError(
                "training.dtype=fp16 does not run on hardware.gpu=cpu",
                why="DeepSpeed has no fp16 there",
                do="Use bf16, fp32 or auto",
            )
        )
    if config.training.checkpointing_cpu:
        problems.append(
            UserError(
                "training.checkpointing_cpu=true moves nothing on hardware.gpu=cpu", do="Set it to false"
            )
        )
    if config.training.optimizer in GPU_OPTIMIZERS:
        name = config.training.optimizer.value
        problems.append(UserError(f"training.optimizer={name} needs a GPU", do="Use torch_adamw or auto"))
    if config.training.attention == "flash_attention_2":
        problems.append(UserError("training.attention=flash_attention_2 needs a GPU", do="Use sdpa"))
    if config.training.liger:
        problems.append(UserError("training.liger=true needs a GPU", do="Use training.liger=false"))
    return problems
