"""DeepSpeed's configuration of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.parsing_deepspeed import SHORT_NAMES
from planner.training_case import TrainingCase

MADE_BY_DEEPSPEED = {"deepspeed_adamw": "AdamW", "lion": "Lion"}
AUTO = "auto"


def ds_config(case: TrainingCase, content: Mapping[str, Any], *, grad_accum: int) -> dict[str, Any]:
    """Return what `deepspeed.initialize` is given.

    Args:
        case: the job.
        content: the same in the case format, whose section `deepspeed` is handed on.
        grad_accum: micro-batches of a step that are played.
    """
    given: Mapping[str, Any] = content.get("deepspeed") or {}
    zero: dict[str, Any] = {"stage": case.zero_stage}
    for key, device in (
        ("offload_optimizer", case.offload_optimizer),
        ("offload_param", case.offload_param),
    ):
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case.micro_batch,
        "gradient_accumulation_steps": grad_accum,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
        **{key: value for key, value in given.items() if key != "zero_optimization"},
        "zero_optimization": merged(zero, _settled(case, given.get("zero_optimization") or {})),
    }
    if case.dtype != "fp32":
        config[case.dtype] = {"enabled": True}
    if case.optimizer in MADE_BY_DEEPSPEED:
        config["optimizer"] = {"type": MADE_BY_DEEPSPEED[case.optimizer], "params": {"lr": 1e-4}}
    return config


def _settled(case: TrainingCase, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `zero_optimization` under DeepSpeed's names, with a number for each "auto"."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = SHORT_NAMES.get(key, key)
        found[name] = getattr(case.zero, name) if value == AUTO else value
    return found


def merged(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a case over ours, one level deep."""
    result = dict(ours)
    for key, value in given.items():
        result[key] = {**result.get(key, {}), **value} if isinstance(value, Mapping) else value
    return result
