"""The exact DeepSpeed configuration of a resolved job: no `auto`, no key that the stage does not read.

Names and defaults are those of DeepSpeed 0.19.8 (`runtime/config.py`, `runtime/zero/config.py`).
"""

from __future__ import annotations

from typing import Any

from llmsys_exp.config.schema import (
    Checkpointing,
    Config,
    Device,
    Dtype,
    Optimizer,
    TrainingConfig,
)
from llmsys_exp.plan.case import planner_case
from planner.network.build import build_network
from planner.units import ceil_div

# A front end that prints every step has no use for DeepSpeed's own report.
NEVER_PRINT = 1_000_000
# What DeepSpeed itself would take, written down so that the file says all; the forecast of main memory
# (planner/host.py) counts with the same figures.
OPTIMIZER_BUFFERS = 4
WEIGHT_BUFFERS = 5
WEIGHT_BUFFER_ELEMENTS = 100_000_000
WEIGHTS_IN_CPU_ELEMENTS = 1_000_000_000
AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}
TORCH_ADAMS = (Optimizer.torch_adamw, Optimizer.torch_adamw_fused)
MADE_BY_DEEPSPEED = (
    Optimizer.deepspeed_adamw,
    *TORCH_ADAMS,
    Optimizer.lion,
    Optimizer.sgd,
    Optimizer.sgd_momentum,
)
"""Optimizers that DeepSpeed makes from its file; the worker makes the others (bitsandbytes, transformers)."""
UNTESTED = tuple(set(Optimizer) - {Optimizer.deepspeed_adamw, *TORCH_ADAMS, Optimizer.lion})
"""Optimizers that ZeRO takes only when told so (`runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS`)."""


def ds_config(config: Config, *, world_size: int, device: str) -> dict[str, Any]:
    """Build what `deepspeed.initialize` gets.

    On the CPU torch's own AdamW is used and nothing is page-locked: both would compile an operator first.
    """
    training, stage = config.training, int(config.zero.stage)
    micro_batch, grad_accum = int(training.micro_batch), int(training.grad_accum)
    result: dict[str, Any] = {
        "train_batch_size": micro_batch * grad_accum * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": grad_accum,
        "gradient_clipping": training.gradient_clipping,
        "steps_per_print": NEVER_PRINT,
        "wall_clock_breakdown": False,
        "zero_optimization": _zero(config, world_size, device),
        **_precision(training),
    }
    if training.optimizer in MADE_BY_DEEPSPEED:
        result["optimizer"] = _optimizer(training, device)
    if stage > 0 and training.optimizer in UNTESTED:
        result["zero_allow_untested_optimizer"] = True
    if Device.nvme in (config.offload.optimizer, config.offload.param):
        result["aio"] = dict(AIO)
    if training.gradient_checkpointing is True and training.checkpointing is Checkpointing.deepspeed:
        result["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": training.checkpointing_cpu,
            "contiguous_memory_optimization": False,
            "synchronize_checkpoint_boundary": False,
        }
    return result


def _precision(training: TrainingConfig) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    if training.dtype is Dtype.bf16:
        sections["bf16"] = {"enabled": True}
    elif training.dtype is Dtype.fp16:
        sections["fp16"] = {"enabled": True, "loss_scale": training.loss_scale}
        if training.loss_scale == 0:  # a fixed scale reads none of these
            sections["fp16"] |= {
                "initial_scale_power": training.initial_scale_power,
                "loss_scale_window": 1000,
                "hysteresis": 2,
                "min_loss_scale": 1,
            }
    if training.grad_accum_dtype not in (Dtype.auto, training.dtype):
        sections["data_types"] = {"grad_accum_dtype": training.grad_accum_dtype.value}
    return sections


def _optimizer(training: TrainingConfig, device: str) -> dict[str, Any]:
    common = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer in (Optimizer.sgd, Optimizer.sgd_momentum):
        # no name of DeepSpeed's own, so that it looks in torch.optim
        momentum = training.momentum if training.optimizer is Optimizer.sgd_momentum else 0.0
        return {"type": "SGD", "params": {**common, "momentum": momentum}}
    common["betas"] = [training.adam_beta1, training.adam_beta2]
    if training.optimizer is Optimizer.lion:
        return {"type": "Lion", "params": common}
    params = {
        **common,
        "eps": training.adam_eps,
        "torch_adam": device == "cpu" or training.optimizer in TORCH_ADAMS,
    }
    if training.optimizer is Optimizer.torch_adamw_fused:
        params["fused"] = True
    return {"type": "AdamW", "params": params}


def _zero(config: Config, world_size: int, device: str) -> dict[str, Any]:
    zero, offload = config.zero, config.offload
    stage = int(zero.stage)
    section: dict[str, Any] = {"stage": stage}
    if stage == 0:
        return section
    section.update(
        overlap_comm=zero.overlap_comm,
        contiguous_gradients=zero.contiguous_gradients,
        reduce_bucket_size=int(zero.reduce_bucket_size),
    )
    if stage < 3:
        section["allgather_bucket_size"] = zero.allgather_bucket_size
    else:
        section.update(_stage3(config))
    pinned = offload.pin_memory and device != "cpu"
    if offload.optimizer in (Device.cpu, Device.nvme):
        section["offload_optimizer"] = _place(config, offload.optimizer, pinned)
        if offload.optimizer is Device.nvme:
            section["offload_optimizer"]["buffer_count"] = OPTIMIZER_BUFFERS
    if offload.param in (Device.cpu, Device.nvme):
        section["offload_param"] = _place(config, offload.param, pinned)
        if offload.param is Device.nvme:
            section["offload_param"] |= _weight_buffers(config, world_size)
    return section


def _stage3(config: Config) -> dict[str, Any]:
    zero = config.zero
    return {
        "stage3_prefetch_bucket_size": zero.stage3_prefetch_bucket_size,
        "stage3_param_persistence_threshold": zero.stage3_param_persistence_threshold,
        "stage3_max_live_parameters": zero.stage3_max_live_parameters,
        "stage3_max_reuse_distance": zero.stage3_max_reuse_distance,
        "sub_group_size": zero.sub_group_size,
        "stage3_gather_16bit_weights_on_model_save": zero.stage3_gather_16bit_weights_on_model_save,
    }


def _place(config: Config, place: Device, pinned: bool) -> dict[str, Any]:
    section: dict[str, Any] = {"device": place.name, "pin_memory": pinned}
    if place is Device.nvme:
        section["nvme_path"] = config.offload.nvme_path
    return section


def _weight_buffers(config: Config, world_size: int) -> dict[str, int]:
    """Buffers that hold the largest shard, which DeepSpeed asserts when it reads one."""
    case = planner_case(config, dtype=config.training.dtype.value)
    largest = max(ceil_div(one.numel, world_size) for one in build_network(case).parameters())
    return {
        "buffer_count": WEIGHT_BUFFERS,
        "buffer_size": max(WEIGHT_BUFFER_ELEMENTS, largest),
        "max_in_cpu": WEIGHTS_IN_CPU_ELEMENTS,
    }
