"""What may stand in a serving case: keys of each engine, types, ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from planner.errors import did_you_mean
from planner.tables import CPU, gpu, gpu_names

SGLANG, TRANSFORMERS = "sglang", "transformers"
ENGINES = (SGLANG, TRANSFORMERS)
MOST = 1 << 30
MOST_GIB = 1 << 20

COMMON_KEYS = (
    "kind", "engine", "engine_version", "hf_config", "dtype", "gpu", "quantization", "input_tokens",
    "output_tokens",
)  # fmt: skip
SGLANG_KEYS = (
    "kv_dtype", "mem_fraction_static", "context_length", "max_running_requests", "cuda_graph_max_bs",
    "chunked_prefill_size", "max_total_tokens", "tp_size", "dp_size", "gpus", "page_size",
    "swa_full_tokens_ratio", "prefill_cuda_graph", "attention_backend", "concurrency", "enable_dp_attention",
    "sorts_vocabulary",
)  # fmt: skip
TRANSFORMERS_KEYS = ("batch_size", "attention", "padded", "memory_limit_gib")
_COUNTS = (
    "tp_size", "dp_size", "gpus", "context_length", "max_running_requests", "cuda_graph_max_bs",
    "chunked_prefill_size", "max_total_tokens", "page_size", "input_tokens", "output_tokens", "concurrency",
    "batch_size",
)  # fmt: skip
_WORDS = {
    "dtype": ("bf16", "fp16", "fp32", "fp8"),
    "kv_dtype": ("auto", "bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2"),
    "attention": ("sdpa", "eager", "flash_attention_2"),
}
_FLAGS = ("prefill_cuda_graph", "padded", "enable_dp_attention", "sorts_vocabulary")
_TEXTS = ("engine_version", "attention_backend")


def problems_of(case: Mapping[str, Any]) -> list[str]:
    """Everything wrong with the keys and values of a case, each in a sentence."""
    engine = case.get("engine", SGLANG)
    if engine not in ENGINES:
        return [f"engine {engine!r} is not supported; known: {', '.join(ENGINES)}"]
    problems = _wrong_keys(case, engine) + _wrong_counts(case) + _wrong_shares(case) + _wrong_words(case)
    problems += _wrong_card(case.get("gpu"))
    if case.get("enable_dp_attention"):
        problems.append("enable_dp_attention is not supported: only whole replicas (dp_size) are planned")
    if not isinstance(case.get("hf_config"), Mapping):
        problems.append("no hf_config: the model's config.json as a mapping")
    return problems


def _wrong_keys(case: Mapping[str, Any], engine: str) -> list[str]:
    own, other = (SGLANG_KEYS, TRANSFORMERS_KEYS) if engine == SGLANG else (TRANSFORMERS_KEYS, SGLANG_KEYS)
    problems: list[str] = []
    for key in case:
        if key in other and case[key] is not None:
            problems.append(f"{key} is not a setting of engine {engine}; leave it out")
        elif key not in (*COMMON_KEYS, *own, *other):
            problems.append(f"unknown key {key!r}. {did_you_mean(key, (*COMMON_KEYS, *own))}")
    return problems


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong_counts(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for key in _COUNTS:
        value = case.get(key)
        switched_off = key == "chunked_prefill_size" and value == -1
        if value is not None and not switched_off and not _is_count(value):
            problems.append(f"{key} is {value!r}; it must be a whole number from 1 to {MOST}")
    return problems


def _wrong_shares(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    fraction, ratio = case.get("mem_fraction_static"), case.get("swa_full_tokens_ratio")
    limit = case.get("memory_limit_gib")
    if fraction is not None and not (_is_number(fraction) and 0 < fraction < 1):
        problems.append(f"mem_fraction_static is {fraction!r}; it must lie between 0 and 1")
    if ratio is not None and not (_is_number(ratio) and 0 < ratio <= 1):
        problems.append(f"swa_full_tokens_ratio is {ratio!r}; it must be above 0 and at most 1")
    if limit is not None and not (_is_number(limit) and 0 < limit <= MOST_GIB):
        problems.append(f"memory_limit_gib is {limit!r}; it must be a number above 0, at most {MOST_GIB}")
    return problems


def _wrong_words(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for key, known in _WORDS.items():
        if case.get(key) is not None and case[key] not in known:
            problems.append(f"{key} is {case[key]!r}; known: {', '.join(known)}")
    for key in _TEXTS:
        if not isinstance(case.get(key) or "", str):
            problems.append(f"{key} is {case[key]!r}; it must be a text")
    version = case.get("engine_version") or "0.5"
    if isinstance(version, str) and not re.match(r"\d{1,4}\.\d{1,4}", version):
        problems.append(f"engine_version is {version!r}; it must be a version as 0.5.23")
    for key in _FLAGS:
        if case.get(key) is not None and not isinstance(case[key], bool):
            problems.append(f"{key} is {case[key]!r}; it must be true or false")
    return problems


def _wrong_card(given: Any) -> list[str]:
    if isinstance(given, str):
        known = gpu_names()
        return [] if given in known else [f"GPU {given!r} is not in the table. {did_you_mean(given, known)}"]
    card: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    keys = ("name", "total_mib", "free_before_weights_gib")
    problems = [f"unknown key gpu.{key}. {did_you_mean(str(key), keys)}" for key in card if key not in keys]
    total, free, name = card.get("total_mib"), card.get("free_before_weights_gib"), card.get("name")
    known = [row for row in gpu_names() if row != CPU]
    if name is not None and name not in known:
        return [*problems, f"gpu.name {name!r} is not in the table. {did_you_mean(str(name), known)}"]
    if total is None and name is not None:
        total = int(gpu(name).memory_gib * 1024)
    if not _is_count(total):
        said = "missing" if total is None else repr(total)
        problems.append(
            f"gpu.total_mib is {said}: the card's memory as nvidia-smi shows it, in MiB "
            "(or let gpu be a name of the GPU table)"
        )
        return problems
    if free is not None and not (_is_number(free) and 0 < free <= MOST_GIB):
        problems.append(f"gpu.free_before_weights_gib is {free!r}; it must be a number above 0")
    elif free is not None and isinstance(total, int) and free * 1024 > total:
        problems.append(f"gpu.free_before_weights_gib {free} is more than the card has ({total} MiB)")
    return problems
