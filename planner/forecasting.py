"""From a case to a forecast: the entry point of all tiers."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from planner.architecture.families import FAMILIES
from planner.disk import disk_bytes
from planner.errors import CaseError
from planner.forecast import ESTIMATE, FORMULA, SIMULATE, Forecast
from planner.host import host_bytes
from planner.memory.arena import Arena
from planner.parsing import parse_training_case
from planner.parsing_perceptron import MLP
from planner.serving.checks import SGLANG
from planner.serving.engines import GenerationForecast, ServingForecast, forecast_serving
from planner.serving.model import is_served
from planner.tables import CPU, constant_bytes, gpu
from planner.training import TrainingRun
from planner.training_case import Calibration, TrainingCase
from planner.uncertainty import residuals
from planner.units import GIB

if TYPE_CHECKING:
    from planner.grid.single import Estimate

AUTO = "auto"
TIERS = (FORMULA, ESTIMATE, SIMULATE, AUTO)
ALIGNMENTS = ("dpo", "grpo", "ppo")


def predict(
    case: Mapping[str, Any], *, tier: str = FORMULA, sglang_python: str | None = None
) -> Forecast | ServingForecast | GenerationForecast | Estimate:
    """Forecast the memory of a training or serving case (keys: docs/case-format.md).

    Args:
        case: the case.
        tier: `formula` plays a training job through; `estimate` answers with a peak in closed form,
            hundreds of times faster, and takes training cases only; `simulate` runs the real code of a
            training job on shapes, for any family that transformers knows (needs torch and DeepSpeed); `auto`
            plays families that are known, and simulates the others.
        sglang_python: the interpreter that holds SGLang, for simulating it; None: the one that
            `LLMSYS_SGLANG_PYTHON` names, else this one.

    Raises:
        CaseError: when the case cannot be planned, with every reason.
    """
    if tier not in TIERS:
        raise CaseError(f"tier {tier!r} is not available; known: {', '.join(TIERS)}")
    kind = case.get("kind", "train")
    if tier == ESTIMATE:
        if kind != "train":
            raise CaseError(f"tier estimate takes training cases, not kind {kind!r}; use tier formula")
        from planner.grid.single import estimate  # numpy, which the formula tier does without

        return estimate(parse_training_case(case))
    if tier == SIMULATE or (tier == AUTO and is_unknown(case)):
        if kind == "serve":
            return _simulated_serving(case, sglang_python)
        if kind != "train":
            raise CaseError(f"tier simulate takes kinds train and serve, not {kind!r}; use tier formula")
        from planner.simulate.tier import simulate  # torch and DeepSpeed, which the other tiers do without

        return simulate(case)
    if kind == "serve":
        return forecast_serving(case)
    if kind in ALIGNMENTS:
        from planner.alignment import forecast_alignment  # it plays jobs with what is in this module

        return forecast_alignment(kind, case)
    if kind not in ("train", MLP):
        raise CaseError(f"kind is {kind!r}; known: {', '.join(sorted((*ALIGNMENTS, MLP, 'serve', 'train')))}")
    return forecast_training(parse_training_case(case))


def _simulated_serving(
    case: Mapping[str, Any], sglang_python: str | None
) -> ServingForecast | GenerationForecast:
    if case.get("engine", SGLANG) == SGLANG:
        from planner.simulate.serving.sglang import simulate_sglang

        return simulate_sglang(case, python=sglang_python)
    from planner.simulate.generation import simulate_generation

    return simulate_generation(case)


def is_unknown(case: Mapping[str, Any]) -> bool:
    """Whether a training or serving case names a family that the formula tier does not know."""
    kind, given = case.get("kind", "train"), case.get("hf_config")
    if kind not in ("train", "serve") or not isinstance(given, Mapping):
        return False
    config = cast("Mapping[str, Any]", given)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        return False
    return not is_served(config) if kind == "serve" else model_type not in FAMILIES


def forecast_training(case: TrainingCase, *, ranks_per_node: int | None = None) -> Forecast:
    """Play a training case through and sum it up.

    The limit of a case changes the verdict, not the play: recent plays are kept.
    """
    return _played(replace(case, memory_limit_bytes=None), ranks_per_node or case.world_size)


@lru_cache(maxsize=4)
def _played(case: TrainingCase, ranks_per_node: int) -> Forecast:
    began = time.perf_counter()
    with without_collecting():
        run = TrainingRun(case)
        arena = run.play()
    host = host_bytes(case, run.network, ranks_per_node=ranks_per_node)
    if case.device == CPU:
        host["tensors of all ranks"] = arena.peak_bytes * ranks_per_node
    return forecast_of(
        case,
        arena,
        start_peak_bytes=run.start_peak_bytes,
        host=host,
        disk=disk_bytes(case, run.network),
        seconds=time.perf_counter() - began,
        residuals=residuals(case),
        notes=_notes(case),
        fragments=case.device != CPU,
    )


@contextmanager
def without_collecting() -> Generator[None, None, None]:
    """Leave the garbage collector out: a play makes thousands of short-lived objects, and not one cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def forecast_of(case: TrainingCase, arena: Arena, *, tier: str = FORMULA, **more: Any) -> Forecast:
    """What a play leaves in its arena, as a forecast; `more` is what lies outside."""
    return Forecast(
        tier=tier,
        peak_allocated_bytes=arena.peak_bytes,
        peak_reserved_bytes=arena.allocator.peak_reserved,
        device_extra_bytes=device_extra_bytes(case),
        components={k: v for k, v in arena.peak_components().items() if v},
        phases={p.name: p.peak_bytes for p in arena.phases},
        events=arena.events,
        expandable_segments=case.expandable_segments,
        **more,
    )


def device_extra_bytes(case: TrainingCase) -> int:
    """CUDA context, libraries and NCCL: GPU memory outside the allocator."""
    if case.device == CPU:
        return 0
    measured = case.calibration or Calibration()
    context = _measured_bytes(measured.context_gib, int(gpu(case.device).context_gib * GIB))
    after_context = _measured_bytes(measured.after_context_gib, constant_bytes("after_context_gib"))
    nccl = _measured_bytes(measured.nccl_gib, constant_bytes("nccl_gib")) if case.world_size > 1 else 0
    return context + after_context + nccl


def _measured_bytes(measured_gib: float | None, otherwise_bytes: int) -> int:
    return otherwise_bytes if measured_gib is None else int(measured_gib * GIB)


def _notes(case: TrainingCase) -> tuple[str, ...]:
    notes: list[str] = []
    if case.attention == "sdpa" and not case.architecture.sdpa:
        notes.append(f"transformers 5 has no sdpa attention for {case.architecture.model_type}: use eager")
    if case.quantization is not None and case.quantization.keeps_inputs:
        notes.append("quantised products keep inputs: a loop that holds the loss of its last step needs more")
    if case.zero_stage == 0 and case.dtype == "bf16" and case.optimizer == "deepspeed_adamw":
        notes.append("stage 0 in bf16: DeepSpeed's Adam starts one step late, so first updates are smaller")
    if case.calibration is not None and case.calibration.source:
        notes.append(case.calibration.source)
    return (*notes, *_derived(case))


def _derived(case: TrainingCase) -> list[str]:
    """Settings that no measured row stands behind."""
    base = case.quantization
    found = {
        "engine fsdp2": case.engine == "fsdp2",
        "a gptq base": base is not None and base.kind == "gptq",
        "a quantised output layer": base is not None and base.head,
        "a quantised base at zero_stage 3": base is not None and case.zero_stage == 3,
        "inputs kept by bitsandbytes before 0.43.2": base is not None
        and base.bits == 4
        and base.keeps_inputs,
        "all-to-all buffers of sequence_parallel": case.sequence_parallel > 1,
        "loss litgpt_chunked": case.loss == "litgpt_chunked",
        "attention_code litgpt": case.attention_code == "litgpt",
    }
    return [f"{what}: derived, not measured" for what, given in found.items() if given]
