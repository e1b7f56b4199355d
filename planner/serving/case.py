"""A serving job as the planner sees it: typed, checked, with the model and the card looked up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import CaseError
from planner.serving.card import Card, card_of
from planner.serving.checks import SGLANG, TRANSFORMERS, problems_of
from planner.serving.formats import WeightFormat, weight_format
from planner.serving.kv import SWA_FULL_TOKENS_RATIO
from planner.serving.model import ServedModel, served_model
from planner.units import GIB

# Backends whose kernels want pages; the engine sets the size itself. Source: SGLang 0.5.17
# `srt/arg_groups/overrides.py` (attention backend and page size passes).
PAGE_TOKENS = {"flashmla": 64, "cutlass_mla": 128, "trtllm_mla": 64, "trtllm_mha": 64, "fa4": 128}
NEWEST = {SGLANG: "0.5.23", TRANSFORMERS: "5.23"}


@dataclass(frozen=True)
class ServingCase:
    """One SGLang start. Lengths are tokens; None means the engine's own default."""

    model: ServedModel
    card: Card
    plan: WeightFormat
    engine_version: str
    dtype: str
    kv_dtype: str
    mem_fraction_static: float | None
    context_length: int
    max_running_requests: int | None
    cuda_graph_max_bs: int | None
    chunked_prefill_size: int | None
    max_total_tokens: int | None
    tp_size: int
    dp_size: int
    gpus: int | None
    page_size: int
    swa_full_tokens_ratio: float
    prefill_cuda_graph: bool
    attention_backend: str
    input_tokens: int | None
    output_tokens: int | None
    concurrency: int | None
    sorts_vocabulary: bool = False
    """Whether tokens are picked with top_p or top_k by the sampler `pytorch`, which sorts whole rows."""

    @property
    def request_tokens(self) -> int | None:
        """Tokens of a request at its end; None when the lengths are not given."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 1) + (self.output_tokens or 1)


@dataclass(frozen=True)
class GenerationCase:
    """One `generate` call of transformers over a batch of equally long prompts."""

    model: ServedModel
    card: Card
    plan: WeightFormat
    dtype: str
    attention: str
    batch_size: int
    input_tokens: int
    output_tokens: int
    padded: bool | None
    memory_limit_bytes: int | None
    engine_version: tuple[int, int]

    @property
    def masked(self) -> bool:
        """Whether attention gets a mask: said so, or prompts of a batch are padded to one length."""
        return self.batch_size > 1 if self.padded is None else self.padded


def parse_serving_case(
    case: Mapping[str, Any], *, read: Callable[[Mapping[str, Any]], ServedModel] = served_model
) -> ServingCase | GenerationCase:
    """Check a serving case and give it types.

    Args:
        case: in the case format.
        read: returns the model of a Hugging Face configuration.

    Raises:
        CaseError: naming every problem of the case.
    """
    problems = problems_of(case)
    if problems:
        raise CaseError(*problems)
    model, asked = read(case["hf_config"]), case.get("quantization")
    if case.get("dtype") == "fp8":  # a short way to say: bf16, weights quantised
        case, asked = {**case, "dtype": "bf16"}, asked or "fp8"
    plan = weight_format(asked, model.quantization)
    if case.get("engine", SGLANG) == TRANSFORMERS:
        return _generation(case, model, plan)
    parsed = _sglang(case, model, plan)
    contradicted = contradictions(parsed)
    if contradicted:
        raise CaseError(*contradicted)
    return parsed


def _sglang(case: Mapping[str, Any], model: ServedModel, plan: WeightFormat) -> ServingCase:
    kv_dtype = case.get("kv_dtype")
    backend = str(case.get("attention_backend") or "")
    return ServingCase(
        model=model,
        card=card_of(case["gpu"]),
        plan=plan,
        engine_version=str(case.get("engine_version") or NEWEST[SGLANG]),
        dtype=case.get("dtype") or "bf16",
        kv_dtype=(case.get("dtype") or "bf16") if kv_dtype in (None, "auto") else str(kv_dtype).split("_")[0],
        mem_fraction_static=case.get("mem_fraction_static"),
        context_length=case.get("context_length") or model.max_positions,
        max_running_requests=case.get("max_running_requests"),
        cuda_graph_max_bs=case.get("cuda_graph_max_bs"),
        chunked_prefill_size=case.get("chunked_prefill_size"),
        max_total_tokens=case.get("max_total_tokens"),
        tp_size=case.get("tp_size") or 1,
        dp_size=case.get("dp_size") or 1,
        gpus=case.get("gpus"),
        page_size=case.get("page_size") or PAGE_TOKENS.get(backend, 1),
        swa_full_tokens_ratio=float(case.get("swa_full_tokens_ratio") or SWA_FULL_TOKENS_RATIO),
        prefill_cuda_graph=case.get("prefill_cuda_graph") is not False,
        attention_backend=backend,
        input_tokens=case.get("input_tokens"),
        output_tokens=case.get("output_tokens"),
        concurrency=case.get("concurrency"),
        sorts_vocabulary=bool(case.get("sorts_vocabulary")),
    )


def _generation(case: Mapping[str, Any], model: ServedModel, plan: WeightFormat) -> GenerationCase:
    limit = case.get("memory_limit_gib")
    version = str(case.get("engine_version") or NEWEST[TRANSFORMERS]).split(".")
    return GenerationCase(
        model=model,
        card=card_of(case["gpu"]),
        plan=plan,
        dtype=case.get("dtype") or "bf16",
        attention=str(case.get("attention") or "sdpa"),
        batch_size=case.get("batch_size") or 1,
        input_tokens=case.get("input_tokens") or 512,
        output_tokens=case.get("output_tokens") or 128,
        padded=case.get("padded"),
        memory_limit_bytes=None if limit is None else int(limit * GIB),
        engine_version=(int(version[0]), int(re.sub(r"\D.*", "", version[1]))),
    )


def contradictions(case: ServingCase) -> list[str]:
    """Settings that are fine alone and not together, or that this model cannot have."""
    model, tp, problems = case.model, case.tp_size, list[str]()
    needed = tp * case.dp_size
    if case.gpus is not None and needed > case.gpus:
        problems.append(f"tp_size {tp} x dp_size {case.dp_size} needs {needed} GPUs, gpus is {case.gpus}")
    if case.card.on_cpu:
        problems.append("gpu is cpu: the forecast of sglang is for GPUs; use engine transformers there")
    if model.heads % tp:
        problems.append(f"num_attention_heads {model.heads} is not a multiple of tp_size {tp}")
    if model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        problems.append(
            f"tp_size {tp} neither divides nor is a multiple of num_key_value_heads {model.kv_heads}"
        )
    widths = {"intermediate_size": model.ffn if model.moe is None or model.moe.dense_layers else 0}
    if model.moe is not None:
        widths |= {"expert width": model.moe.ffn, "shared expert width": model.moe.shared_ffn}
    problems += [f"{name} {w} is not a multiple of tp_size {tp}" for name, w in widths.items() if w % tp]
    length = case.request_tokens
    if length is not None and length > case.context_length:
        problems.append(
            f"input_tokens + output_tokens is {length}, more than context_length {case.context_length}; "
            "the engine refuses such requests: raise context_length or shorten them"
        )
    if case.concurrency is not None and length is None:
        problems.append("concurrency needs input_tokens and output_tokens: how long are the requests?")
    wanted, most = case.concurrency, case.max_running_requests
    if wanted is not None and most is not None and wanted > most * case.dp_size:
        problems.append(f"concurrency {wanted} is above max_running_requests {most} x dp_size {case.dp_size}")
    return problems
