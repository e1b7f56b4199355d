"""A serving job as the planner sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from planner.architecture.families import architecture_of
from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean
from planner.units import MIB

KEYS = (
    "kind",
    "engine",
    "engine_version",
    "hf_config",
    "dtype",
    "kv_dtype",
    "gpu",
    "mem_fraction_static",
    "context_length",
    "max_running_requests",
    "cuda_graph_max_bs",
    "chunked_prefill_size",
    "tp_size",
    "dp_size",
    "prefill_cuda_graph",
    "attention_backend",
)

COUNTS = (
    "tp_size",
    "dp_size",
    "context_length",
    "max_running_requests",
    "cuda_graph_max_bs",
    "chunked_prefill_size",
)
MOST = 1 << 30


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


@dataclass(frozen=True)
class ServingCase:
    """One SGLang start. Lengths are tokens; None means the engine's own default."""

    architecture: Architecture
    engine_version: str
    dtype: str
    kv_dtype: str
    total_mib: int
    free_before_weights_bytes: int | None
    mem_fraction_static: float | None
    context_length: int
    max_running_requests: int | None
    cuda_graph_max_bs: int | None
    chunked_prefill_size: int | None
    tp_size: int = 1
    dp_size: int = 1
    prefill_cuda_graph: bool = True

    @property
    def total_bytes(self) -> int:
        """Memory of the card."""
        return self.total_mib * MIB


def parse_serving_case(case: Mapping[str, Any]) -> ServingCase:
    """Check a serving case and give it types.

    Raises:
        CaseError: naming every problem of the case.
    """
    problems = [f"unknown key {key!r}. {did_you_mean(key, KEYS)}" for key in case if key not in KEYS]
    problems += _wrong_values(case)
    problems += _wrong_card(case.get("gpu"))
    if not isinstance(case.get("hf_config"), Mapping):
        problems.append("no hf_config: the model's config.json as a mapping")
    if problems:
        raise CaseError(*problems)
    return _typed(case)


def _wrong_values(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    if case.get("engine", "sglang") != "sglang":
        problems.append(f"engine {case['engine']!r} is not supported; known: sglang")
    for key in COUNTS:
        value = case.get(key)
        switched_off = key == "chunked_prefill_size" and value == -1
        if value is not None and not switched_off and not _is_count(value):
            problems.append(f"{key} is {value!r}; it must be a whole number from 1 to {MOST}")
    fraction = case.get("mem_fraction_static")
    if fraction is not None and not (isinstance(fraction, (int, float)) and 0 < fraction < 1):
        problems.append(f"mem_fraction_static is {fraction!r}; it must lie between 0 and 1")
    for key in ("dtype", "kv_dtype"):
        if case.get(key, "bf16") not in ("bf16", "fp16", "fp32", "fp8"):
            problems.append(f"{key} is {case[key]!r}; known: bf16, fp16, fp32, fp8")
    for key in ("engine_version", "attention_backend"):
        if not isinstance(case.get(key) or "", str):
            problems.append(f"{key} is {case[key]!r}; it must be a text")
    if not isinstance(case.get("prefill_cuda_graph", True), bool):
        problems.append(f"prefill_cuda_graph is {case['prefill_cuda_graph']!r}; it must be true or false")
    return problems


def _wrong_card(gpu: Any) -> list[str]:
    card: Mapping[str, Any] = cast("Mapping[str, Any]", gpu) if isinstance(gpu, Mapping) else {}
    problems: list[str] = []
    total, free = card.get("total_mib"), card.get("free_before_weights_gib")
    if not _is_count(total):
        said = "missing" if total is None else repr(total)
        problems.append(f"gpu.total_mib is {said}: the card's memory as nvidia-smi shows it, in MiB")
    number = isinstance(free, (int, float)) and not isinstance(free, bool)
    if free is not None and not (number and 0 <= free <= MOST):
        problems.append(f"gpu.free_before_weights_gib is {free!r}; it must be a number from 0 to {MOST}")
    return problems


def _typed(case: Mapping[str, Any]) -> ServingCase:
    architecture = architecture_of(case["hf_config"])
    free = case["gpu"].get("free_before_weights_gib")
    return ServingCase(
        architecture=architecture,
        engine_version=str(case.get("engine_version", "0.5.23")),
        dtype=case.get("dtype", "bf16"),
        kv_dtype=case.get("kv_dtype", case.get("dtype", "bf16")),
        total_mib=case["gpu"]["total_mib"],
        free_before_weights_bytes=None if free is None else int(free * 1024**3),
        mem_fraction_static=case.get("mem_fraction_static"),
        context_length=case.get("context_length") or architecture.max_positions,
        max_running_requests=case.get("max_running_requests"),
        cuda_graph_max_bs=case.get("cuda_graph_max_bs"),
        chunked_prefill_size=case.get("chunked_prefill_size"),
        tp_size=case.get("tp_size") or 1,
        dp_size=case.get("dp_size") or 1,
        prefill_cuda_graph=bool(case.get("prefill_cuda_graph", True)),
    )
