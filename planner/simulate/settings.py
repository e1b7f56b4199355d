"""DeepSpeed's configuration of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MADE_BY_DEEPSPEED = {"deepspeed_adamw": "AdamW", "lion": "Lion"}


def ds_config(case: Mapping[str, Any], *, grad_accum: int) -> dict[str, Any]:
    """Return what `deepspeed.initialize` is given.

    Args:
        case: in the case format.
        grad_accum: micro-batches of a step that are played.
    """
    given: Mapping[str, Any] = case.get("deepspeed") or {}
    zero: dict[str, Any] = {"stage": case.get("zero_stage", 0)}
    for key in ("offload_optimizer", "offload_param"):
        device = case.get(key, "none")
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
    dtype, optimizer = case.get("dtype", "bf16"), case.get("optimizer", "deepspeed_adamw")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": grad_accum,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
        **{key: value for key, value in given.items() if key != "zero_optimization"},
        "zero_optimization": merged(zero, given.get("zero_optimization") or {}),
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if optimizer in MADE_BY_DEEPSPEED:
        config["optimizer"] = {"type": MADE_BY_DEEPSPEED[optimizer], "params": {"lr": 1e-4}}
    return config


def merged(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a case over ours, one level deep."""
    result = dict(ours)
    for key, value in given.items():
        result[key] = {**result.get(key, {}), **value} if isinstance(value, Mapping) else value
    return result
