"""Reads the part of a DeepSpeed configuration that moves memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from planner.architecture.families import architecture_of
from planner.errors import CaseError, did_you_mean
from planner.training_case import ZeroSettings

_FLAGS = (
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "stage3_gather_16bit_weights_on_model_save",
    "memory_efficient_linear",
)
_COUNTS = tuple(name for name in ZeroSettings.__dataclass_fields__ if name not in (*_FLAGS, "offload_ratio"))
SHORT_NAMES = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
"""Names of `zero_optimization` without the prefix, as in older files."""
_ELSEWHERE = ("stage", "offload_optimizer", "offload_param")  # keys of the case itself
_NO_MEMORY = (
    "allgather_partitions",
    "elastic_checkpoint",
    "ignore_unused_parameters",
    "load_from_fp32_weights",
    "log_trace_cache_warnings",
    "round_robin_gradients",
    "stage3_gather_fp16_weights_on_model_save",
)
# What transformers puts in place of "auto" (integrations/deepspeed.py: trainer_config_finalize).
_AUTO: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
_REFUSED = {
    "zero_hpz_partition_size": "hierarchical partitioning (ZeRO++) is not modelled",
    "zero_quantized_weights": "quantised gathers (ZeRO++) are not modelled",
    "zero_quantized_gradients": "quantised gradients (ZeRO++) are not modelled",
    "zero_quantized_nontrainable_weights": "quantised frozen weights are not modelled",
    "mics_shard_size": "MiCS is not modelled",
}


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CaseError(f"{key} must be a mapping")
    return cast("Mapping[str, Any]", value)


def _deepspeed(case: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(case.get("deepspeed"), "deepspeed")


def grad_accum_dtype(case: Mapping[str, Any]) -> str | None:
    """`data_types.grad_accum_dtype`: the type in which gradients are accumulated."""
    types = _mapping(_deepspeed(case).get("data_types"), "deepspeed.data_types")
    value = types.get("grad_accum_dtype")
    if value is not None and value not in ("fp32", "bf16", "fp16"):
        raise CaseError(f"deepspeed.data_types.grad_accum_dtype is {value!r}; known: bf16, fp16, fp32")
    return None if value == case.get("dtype", "bf16") else value


def zero_settings(case: Mapping[str, Any]) -> ZeroSettings:
    """`zero_optimization` of a case's `deepspeed` section.

    Raises:
        CaseError: for keys that are unknown or not modelled, and for values of the wrong kind.
    """
    given = _mapping(_deepspeed(case).get("zero_optimization"), "deepspeed.zero_optimization")
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in given.items():
        try:
            settings |= _setting(case, key, value)
        except CaseError as error:
            problems += error.problems
    try:
        settings["offload_ratio"] = _ratio(given)
    except CaseError as error:
        problems += error.problems
    if problems:
        raise CaseError(*problems)
    return ZeroSettings(**settings)


def _setting(case: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """One key under the name that `ZeroSettings` has for it; nothing where it moves no memory."""
    name, where = SHORT_NAMES.get(key, key), f"deepspeed.zero_optimization.{key}"
    if name in _COUNTS:
        counted: Any = _auto(case, name) if value == "auto" else value
        if _is_count(counted):
            return {name: int(counted)}
        raise CaseError(f"{where} is {value!r}; it must be a count of elements{_or_auto(name)}")
    if name in _FLAGS:
        if isinstance(value, bool) or (value is None and name == "overlap_comm"):
            return {name: value}
        raise CaseError(f"{where} is {value!r}; it must be true or false")
    if name in _REFUSED and not _is_off(value):
        raise CaseError(f"{where}: {_REFUSED[name]}; leave it out")
    if name not in (*_ELSEWHERE, *_NO_MEMORY, *_REFUSED):
        known = (*_COUNTS, *_FLAGS, *_ELSEWHERE)
        raise CaseError(f"unknown key {where}. {did_you_mean(key, known)}")
    return {}


def _or_auto(name: str) -> str:
    return ", or auto" if name in _AUTO else ""


def _is_off(value: Any) -> bool:
    """Whether a value of a refused key means what DeepSpeed does without it."""
    return value is None or value is False or (not isinstance(value, bool) and value in (1, -1))


def _auto(case: Mapping[str, Any], name: str) -> int | None:
    """What stands for "auto", where the setting has such a value."""
    if name not in _AUTO:
        return None
    try:
        hidden = architecture_of(_mapping(case.get("hf_config"), "hf_config")).hidden
    except CaseError:  # reported where the model is read
        return 0
    return _AUTO[name](hidden)


def _ratio(given: Mapping[str, Any]) -> float:
    where = "deepspeed.zero_optimization."
    _mapping(given.get("offload_param"), f"{where}offload_param")
    value = _mapping(given.get("offload_optimizer"), f"{where}offload_optimizer").get("ratio", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise CaseError(f"offload_optimizer.ratio is {value!r}; it must lie between 0 and 1")
    return float(value)


def _is_count(value: Any) -> bool:
    """Whether it counts elements; DeepSpeed's own files write 5e8, so a float may."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e15
