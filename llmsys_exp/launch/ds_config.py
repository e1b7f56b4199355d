"""The exact DeepSpeed configuration of a resolved job: no `auto`, no key that the stage does not read."""

from __future__ import annotations

from typing import Any

from llmsys_exp.config.schema import Config, Device, Dtype, OffloadConfig, Optimizer, ZeroConfig

# A front end that prints every step has no use for DeepSpeed's own report.
NEVER_PRINT = 1_000_000


def ds_config(config: Config, *, world_size: int, device: str) -> dict[str, Any]:
    """Build what `deepspeed.initialize` gets.

    On the CPU torch's own AdamW is used and nothing is page-locked: both would compile an operator first.
    """
    training = config.training
    micro_batch, grad_accum = int(training.micro_batch), int(training.grad_accum)
    result: dict[str, Any] = {
        "train_batch_size": micro_batch * grad_accum * world_size,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": grad_accum,
        "gradient_clipping": training.gradient_clipping,
        "steps_per_print": NEVER_PRINT,
        "wall_clock_breakdown": False,
        "optimizer": _optimizer(config, device),
        "zero_optimization": _zero(config.zero, config.offload, device),
    }
    if _uses_torch_adam(config, device):
        result["zero_force_ds_cpu_optimizer"] = False
    if training.dtype is Dtype.bf16:
        result["bf16"] = {"enabled": True}
    elif training.dtype is Dtype.fp16:
        result["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2}
    return result


def _optimizer(config: Config, device: str) -> dict[str, Any]:
    return {
        "type": "AdamW",
        "params": {
            "lr": config.training.learning_rate,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": config.training.weight_decay,
            "torch_adam": _uses_torch_adam(config, device),
        },
    }


def _uses_torch_adam(config: Config, device: str) -> bool:
    return device == "cpu" or config.training.optimizer is Optimizer.torch_adamw


def _zero(zero: ZeroConfig, offload: OffloadConfig, device: str) -> dict[str, Any]:
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
        section.update(_stage3(zero))
    for name, place in (("offload_optimizer", offload.optimizer), ("offload_param", offload.param)):
        if place in (Device.cpu, Device.nvme):
            section[name] = _offload(place, offload, device)
    return section


def _stage3(zero: ZeroConfig) -> dict[str, Any]:
    return {
        "stage3_prefetch_bucket_size": zero.stage3_prefetch_bucket_size,
        "stage3_param_persistence_threshold": zero.stage3_param_persistence_threshold,
        "stage3_max_live_parameters": zero.stage3_max_live_parameters,
        "stage3_max_reuse_distance": zero.stage3_max_reuse_distance,
        "sub_group_size": zero.sub_group_size,
        "stage3_gather_16bit_weights_on_model_save": zero.stage3_gather_16bit_weights_on_model_save,
    }


def _offload(place: Device, offload: OffloadConfig, device: str) -> dict[str, Any]:
    section: dict[str, Any] = {"device": place.name, "pin_memory": offload.pin_memory and device != "cpu"}
    if place is Device.nvme:
        section["nvme_path"] = offload.nvme_path
    return section
