"""Translates a configuration into the planner's serving case (docs/case-format.md, "Serving")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Dtype, SglangConfig
from llmsys_exp.plan.budget import GIB_F, host_memory_gib
from llmsys_exp.plan.case import CPU
from llmsys_exp.plan.serving_work import Work
from planner.serving.case import GenerationCase, ServingCase, parse_serving_case
from planner.tables import constant_bytes
from planner.units import MIB, gib

SGLANG, SGLANG_SERVER, TRANSFORMERS = "sglang", "sglang_server", "transformers"
SORTING_SAMPLER = "pytorch"
FP8_CAPABILITY = (8, 9)
SETTING_OF = {
    "context_length": "inference.sglang.context_length",
    "max_running_requests": "inference.sglang.max_running_requests",
    "chunked_prefill_size": "inference.sglang.chunked_prefill_size",
    "mem_fraction_static": "inference.sglang.mem_fraction_static",
    "max_total_tokens": "inference.sglang.max_total_tokens",
    "kv_dtype": "inference.sglang.kv_cache_dtype",
    "quantization": "inference.sglang.quantization",
    "tp_size": "inference.sglang.tp_size",
    "dp_size": "inference.sglang.dp_size",
    "attention": "training.attention",
    "batch_size": "inference.batch_size",
}
"""Key of the planner's serving case -> the setting that stands for it, for messages."""


@dataclass(frozen=True)
class Demand:
    """What is served: the shape, for which prompts, by which SGLang (None: the newest that is known)."""

    shape: Mapping[str, Any]
    work: Work
    engine_version: str | None = None


def starts_sglang(config: Config) -> bool:
    """Whether an SGLang of our own is started, offline or as a server."""
    inference = config.inference
    return inference.engine == SGLANG or (inference.engine == SGLANG_SERVER and inference.server.url is None)


def served_dtype(config: Config) -> str:
    """Type that the weights are served in: the one of training, where that is not open."""
    given, name = config.training.dtype, config.hardware.gpu
    if given is not Dtype.auto:
        return given.value
    if name == CPU:
        return "fp32"
    return "bf16" if planner.gpu(name).bf16 else "fp16"


def sglang_case(
    config: Config, settings: SglangConfig, demand: Demand, *, requests: int | None
) -> ServingCase:
    """The case of one SGLang start; settings still at `auto` are the engine's own.

    Args:
        config: of the whole run.
        settings: the engine's, perhaps with some values filled in.
        demand: what is served, and for which prompts.
        requests: most requests of one replica.

    Raises:
        planner.CaseError: when the planner refuses it.
    """
    parsed = parse_serving_case(sglang_content(config, settings, demand, requests=requests))
    assert isinstance(parsed, ServingCase)
    return parsed


def sglang_content(
    config: Config, settings: SglangConfig, demand: Demand, *, requests: int | None
) -> dict[str, Any]:
    """The same in the case format, which any tier of `planner.predict` takes."""
    on_cpu = config.hardware.gpu == CPU
    case = {
        "kind": "serve",
        "engine": SGLANG,
        "engine_version": demand.engine_version,
        "hf_config": demand.shape,
        "dtype": served_dtype(config),
        "quantization": settings.quantization,
        "gpu": _machine(config) if on_cpu else card(config),
        "kv_dtype": settings.kv_cache_dtype,
        "max_running_requests": requests,
        "prefill_cuda_graph": not (on_cpu or settings.arguments.get("disable_prefill_cuda_graph")),
        "sorts_vocabulary": settings.sampling_backend == SORTING_SAMPLER,
        "attention_backend": settings.attention_backend,
        "max_total_tokens": settings.max_total_tokens,
        "page_size": settings.arguments.get("page_size"),
        "input_tokens": _mean_within(settings.context_length, demand.work),
        "output_tokens": demand.work.new_tokens,
    }
    open_settings = ("mem_fraction_static", "context_length", "cuda_graph_max_bs", "chunked_prefill_size",
                     "tp_size", "dp_size")  # fmt: skip
    case |= {key: _given(getattr(settings, key)) for key in open_settings}
    return {key: value for key, value in case.items() if value is not None}


def _mean_within(context: Any, work: Work) -> int:
    """Tokens of a prompt: a mean that is guessed from bytes must not be what a start is refused for."""
    most = work.mean_tokens if context == AUTO else int(context) - work.new_tokens
    return max(1, min(work.mean_tokens, most))


def generation_case(config: Config, demand: Demand, *, batch_size: int) -> GenerationCase:
    """The case of one `generate` call of transformers over the longest prompts.

    Raises:
        planner.CaseError: when the planner refuses it.
    """
    parsed = parse_serving_case(generation_content(config, demand, batch_size=batch_size))
    assert isinstance(parsed, GenerationCase)
    return parsed


def generation_content(config: Config, demand: Demand, *, batch_size: int) -> dict[str, Any]:
    """The same in the case format, which any tier of `planner.predict` takes."""
    on_cpu = config.hardware.gpu == CPU
    case: dict[str, Any] = {
        "kind": "serve",
        "engine": TRANSFORMERS,
        "hf_config": demand.shape,
        "dtype": served_dtype(config),
        "gpu": CPU if on_cpu else card(config, margin_gib=config.gate.margin_gib),
        "attention": config.training.attention,
        "batch_size": batch_size,
        "input_tokens": demand.work.long_tokens,
        "output_tokens": demand.work.new_tokens,
        "memory_limit_gib": _host_limit_gib(config) if on_cpu else None,
    }
    return {key: value for key, value in case.items() if value is not None}


def card(config: Config, *, margin_gib: float = 0.0) -> dict[str, Any]:
    """The GPU as the planner takes it: its row, its size where that is given, and what others hold of it."""
    hardware, row = config.hardware, planner.gpu(config.hardware.gpu)
    described: dict[str, Any] = {"name": hardware.gpu}
    free_gib = row.usable_gib
    if hardware.memory_gib is not None:
        described["total_mib"] = max(1, int(hardware.memory_gib * 1024))
        free_gib = hardware.memory_gib - row.context_gib
    free_gib -= hardware.in_use_gib + margin_gib
    if free_gib != row.usable_gib:
        described["free_before_weights_gib"] = max(0.001, free_gib)
    return described


def in_settings(text: str) -> str:
    """Say with the names of settings what the planner says with the keys of its case."""
    keys = "|".join(SETTING_OF)
    return re.sub(rf"(?<![\w.])({keys})\b", lambda found: SETTING_OF[found[1]], text)


def fix_of(case: ServingCase, fix: str | None, *, fraction_given: bool, gpus: int) -> str | None:
    """The planner's cheapest change as overrides: requests over all replicas, GPUs where more are needed."""
    if fix is None:
        return None
    if not fraction_given:  # it is chosen anew for whatever else changes
        fix = re.sub(r" ?\(with mem_fraction_static=[\d.]+\)", "", fix)
    fix = re.sub(
        r"max_running_requests=(\d+)",
        lambda found: f"max_running_requests={int(found[1]) * case.dp_size}",
        fix,
    )
    ranks = re.search(r"\btp_size=(\d+)", fix)
    if ranks and int(ranks[1]) * case.dp_size > gpus:
        fix += f" hardware.gpus_per_node={int(ranks[1]) * case.dp_size}"
    return in_settings(re.sub(r"\bkv_dtype=fp8\b", f"kv_dtype={fp8_cache(case)}", fix))


def fp8_cache(case: ServingCase) -> str:
    """The 8-bit type of the KV cache that suits a card: FlashAttention 3 takes e4m3 alone."""
    return "fp8_e4m3" if (case.card.capability or (0, 0)) >= FP8_CAPABILITY else "fp8_e5m2"


def _given(value: Any) -> Any:
    return None if value == AUTO else value


def _machine(config: Config) -> Mapping[str, Any]:
    """Main memory in the place of a card's: SGLang divides what is free of it by the same rule."""
    host_gib = config.hardware.host_memory_gib or host_memory_gib() or 16.0
    return {
        "total_mib": int(host_gib * GIB_F / MIB),
        "free_before_weights_gib": max(0.001, host_gib - config.gate.margin_gib),
    }


def _host_limit_gib(config: Config) -> float | None:
    host_gib = config.hardware.host_memory_gib or host_memory_gib()
    if host_gib is None:
        return None
    return max(0.001, host_gib - config.gate.margin_gib - gib(constant_bytes("cpu_process_rss_gib")))
