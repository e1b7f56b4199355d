"""The forecast of one transformers `generate` call: peak, largest batch, verdict and the cheapest change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.serving.case import GenerationCase
from planner.serving.forecast import GenerationForecast
from planner.serving.formats import UNQUANTISED, WeightFormat
from planner.serving.phases import (
    decode_parts,
    growth_bytes,
    kv_elements,
    logits_bytes,
    peak_bytes,
    prefill_parts,
)
from planner.tables import constant_bytes
from planner.units import DTYPE_BYTES, gib

TIGHT_SHARE = 0.03
MOST_BATCH = 1 << 20
NF4 = WeightFormat("bnb", bits=4)
INT8 = WeightFormat("bnb", bits=8)


def forecast_generation(case: GenerationCase) -> GenerationForecast:
    """Peak of one `generate` call, by component, and the largest batch."""
    began = time.perf_counter()
    phases = {"prefill": prefill_parts(case), "decode": decode_parts(case)}
    phase = max(phases, key=lambda name: sum(phases[name].values()))
    parts = {name: nbytes for name, nbytes in phases[phase].items() if nbytes}
    judged = judged_call(case, parts)
    budget = judged["budget_bytes"]
    return GenerationForecast(
        weights_bytes=parts["weights"],
        kv_bytes_per_token=kv_elements(case.model) * DTYPE_BYTES[case.dtype] * case.model.layers,
        kv_cache_bytes=phases["decode"]["kv_cache"],
        kv_growth_bytes=growth_bytes(case),
        prefill_activations_bytes=phases["prefill"]["activations"],
        logits_bytes=logits_bytes(case),
        phase=phase,
        largest_batch=None if budget is None else largest_batch(case, budget),
        fix=_fix(case, budget) if judged["fits"] is False and budget is not None else None,
        **judged,
        notes=tuple(_notes(case)),
        seconds=time.perf_counter() - began,
    )


def judged_call(case: GenerationCase, parts: dict[str, int]) -> dict[str, Any]:
    """What follows from the parts of a call's highest moment, as fields of its forecast."""
    peak, budget = sum(parts.values()), budget_bytes(case)
    fits = None if budget is None else peak <= budget
    return {
        "peak_allocated_bytes": peak,
        "device_used_bytes": peak + outside_bytes(case),
        "components": parts,
        "budget_bytes": budget,
        "fits": fits,
        "label": None if budget is None else _label(peak, budget),
        "cause": _cause(case, parts, budget) if fits is False else None,
    }


def outside_bytes(case: GenerationCase) -> int:
    """CUDA context and libraries, or the process on the CPU."""
    if case.card.on_cpu:
        return constant_bytes("cpu_process_rss_gib")
    return case.card.context_bytes + constant_bytes("after_context_gib")


def budget_bytes(case: GenerationCase) -> int | None:
    """What the allocator may take: the case's limit, else what the card leaves."""
    if case.memory_limit_bytes is not None:
        return case.memory_limit_bytes
    return None if case.card.on_cpu else case.card.free_bytes - constant_bytes("after_context_gib")


def largest_batch(case: GenerationCase, budget: int) -> int:
    """The most sequences whose peak stays within the budget; 0 when not even one does."""
    low, high = 0, MOST_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        if peak_bytes(replace(case, batch_size=middle)) <= budget:
            low = middle
        else:
            high = middle
    return low


def _label(peak: int, budget: int) -> str:
    """The word of a verdict."""
    if peak > budget:
        return "does not fit"
    return "tight" if budget - peak < TIGHT_SHARE * budget else "fits"


def _cause(case: GenerationCase, parts: dict[str, int], budget: int | None) -> str:
    """Say what is too large, and what the largest part of it is."""
    largest = max(parts, key=lambda name: parts[name])
    need, room = gib(sum(parts.values())), gib(budget or 0)
    shape = f"a batch of {case.batch_size} x ({case.input_tokens} + {case.output_tokens} tokens)"
    part = f"the largest part is {largest} ({gib(parts[largest]):.1f} GiB)"
    return f"{shape} needs {need:.1f} GiB of {room:.1f}; {part}"


def _fix(case: GenerationCase, budget: int) -> str | None:
    """The first single change that fits with a little to spare; cheapest in quality first."""
    room = int(budget * (1 - TIGHT_SHARE))
    for text, changed in _changes(case, room):
        peak = peak_bytes(changed)
        if peak <= room:
            return f"{text} (about {gib(peak):.1f} GiB)"
    return None


def _changes(case: GenerationCase, room: int) -> Iterator[tuple[str, GenerationCase]]:
    if case.attention == "eager":
        yield "attention=sdpa", replace(case, attention="sdpa")
    batch = largest_batch(case, room)
    if batch:
        yield f"batch_size={batch}", replace(case, batch_size=batch)
    if case.plan == UNQUANTISED and not case.card.on_cpu:
        yield "quantization=bitsandbytes, 8 bits", replace(case, plan=INT8)
        yield "quantization=bitsandbytes, 4 bits", replace(case, plan=NF4)
        yield "quantization=bitsandbytes, 4 bits, batch_size=1", replace(case, plan=NF4, batch_size=1)
    half = max(1, case.input_tokens // 2)
    yield f"batch_size=1 input_tokens={half}", replace(case, batch_size=1, input_tokens=half)


def _notes(case: GenerationCase) -> Iterator[str]:
    yield "from transformers' source; checked against real calls on the CPU and public figures of one GPU"
    if case.input_tokens + case.output_tokens > case.model.max_positions:
        yield f"input_tokens + output_tokens exceeds the model's {case.model.max_positions} positions"
    if case.plan.kind == "bnb" and case.plan.bits == 8:
        yield "8-bit matrices keep outlier columns apart: their share is not counted"
    if case.model.moe is not None:
        yield f"{case.model.model_type}: the experts' pass depends on the kernel; the grouped one is assumed"
