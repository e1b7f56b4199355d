"""One `generate` call of transformers on shapes: the prompt's pass, and the last new token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from planner.errors import CaseError, NotSimulated
from planner.forecast import SIMULATE
from planner.forecasting import is_unknown
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.serving.case import GenerationCase, parse_serving_case
from planner.serving.forecast import GenerationForecast
from planner.serving.generate import forecast_generation, judged_call, outside_bytes
from planner.serving.model import ServedModel, model_of
from planner.serving.phases import logits_bytes
from planner.simulate.cuda_paths import cuda_paths
from planner.simulate.model import DTYPES
from planner.simulate.quiet import quiet
from planner.simulate.recorder import ACTIVATIONS, GPU, Recorder
from planner.simulate.unknown import check_attention, transformers_config, unverified_architecture
from planner.tables import HOPPER, card_of, gpu, workspace_bytes

ANY_GPU = "a100-80gb"
MOST_SAID = 200
KV_CACHE = "kv_cache"


def simulate_generation(content: Mapping[str, Any]) -> GenerationForecast:
    """Forecast a call by running the model's real code on shapes, without gradients.

    What a verdict needs beside the peak, such as the largest batch, is the formula's; of a family that it
    does not know, nothing but what was simulated is said.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    began = time.perf_counter()
    unknown = is_unknown(content)
    case = parse_serving_case(content, read=_unverified) if unknown else parse_serving_case(content)
    if not isinstance(case, GenerationCase):
        raise CaseError(
            "tier simulate takes engine transformers, SGLang runs code of its own; use tier formula"
        )
    instead = "" if unknown else "; use tier formula"
    if case.plan.kind != "none" or case.card.on_cpu:
        raise NotSimulated(f"tier simulate takes unquantised weights on a GPU{instead}")
    with quiet():
        config = transformers_config(dict(content["hf_config"]))
    check_attention(config, case.attention)
    run = GenerationRun(case, config)
    try:
        moments = run.play()
    except Exception as error:  # whatever transformers raises
        said = str(error).strip().split("\n")[0][:MOST_SAID] or type(error).__name__
        raise NotSimulated(
            f"{case.model.model_type} cannot be simulated: {said} ({type(error).__name__}){instead}"
        ) from error
    phase = max(moments, key=lambda name: sum(moments[name].values()))
    seconds = time.perf_counter() - began
    if unknown:
        return _simulated_alone(case, moments, phase, run.cache_bytes, seconds)
    return _beside_formula(case, moments[phase], phase, seconds)


def _unverified(config: Mapping[str, Any]) -> ServedModel:
    with quiet():
        return model_of(unverified_architecture(transformers_config(dict(config))))


def _beside_formula(
    case: GenerationCase, parts: dict[str, int], phase: str, seconds: float
) -> GenerationForecast:
    formula, peak = forecast_generation(case), sum(parts.values())
    budget = formula.budget_bytes
    fits = None if budget is None else peak <= budget
    return replace(
        formula,
        tier=SIMULATE,
        weights_bytes=parts["weights"],
        peak_allocated_bytes=peak,
        device_used_bytes=peak + outside_bytes(case),
        phase=phase,
        components=parts,
        fits=fits,
        label=formula.label if fits == formula.fits else "fits" if fits else "does not fit",
        seconds=seconds,
    )


def _simulated_alone(
    case: GenerationCase, moments: dict[str, dict[str, int]], phase: str, cache_bytes: int, seconds: float
) -> GenerationForecast:
    parts, held = moments[phase], case.input_tokens + case.output_tokens - 1
    weights = parts["weights"]
    return GenerationForecast(
        weights_bytes=weights,
        kv_bytes_per_token=cache_bytes // (case.batch_size * held),
        kv_cache_bytes=cache_bytes,
        kv_growth_bytes=max(0, sum(moments["decode"].values()) - weights - cache_bytes),
        prefill_activations_bytes=moments["prefill"].get(ACTIVATIONS, 0),
        logits_bytes=logits_bytes(case),
        phase=phase,
        **judged_call(case, parts),
        notes=(f"{case.model.model_type} is not known to the formula: simulated",),
        seconds=seconds,
        tier=SIMULATE,
    )


def _with_cache(parts: dict[str, int], cache_bytes: int) -> dict[str, int]:
    """Name the cache among what the passes hold; at the highest moment all layers have theirs."""
    kept = min(cache_bytes, parts.get(ACTIVATIONS, 0))
    split = {**parts, KV_CACHE: kept, ACTIVATIONS: parts.get(ACTIVATIONS, 0) - kept}
    return {name: split[name] for name in sorted(split, key=lambda name: -split[name]) if split[name]}


class GenerationRun:
    """A model on the simulated GPU that answers a batch of prompts.

    Attributes:
        cache_bytes: what the cache holds before the last new token, once it has been played.
    """

    def __init__(self, case: GenerationCase, config: Any) -> None:
        self._case, self._config = case, config
        self._device = case.card.name or ANY_GPU
        self._arena = Arena(gpu_allocator())
        self._recorder = Recorder(
            self._arena, workspace_bytes(self._device), card=card_of(self._device), offloads=False
        )

    def play(self) -> dict[str, dict[str, int]]:
        """Return bytes by component at the highest moment of each phase."""
        config = self._config
        hopper = gpu(self._device).capability == HOPPER
        with quiet(), torch.no_grad(), cuda_paths(hopper=hopper), self._recorder:
            model = self._load(config)
            found = {"prefill": self._prefill(model), "decode": self._decode(model)}
        return found

    def _load(self, config: Any) -> Any:
        from transformers import AutoModelForCausalLM

        case, self._recorder.label = self._case, "weights"
        with torch.device(GPU):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=case.attention, dtype=DTYPES[case.dtype]
            )
        self._recorder.take([*model.parameters(), *model.buffers()])
        # "is nothing masked?"
        self._recorder.label, self._recorder.answer = ACTIVATIONS, not case.masked
        return model.eval()

    def _prefill(self, model: Any) -> dict[str, int]:
        self._arena.forget_peak()
        out = self._forward(model, self._case.input_tokens, self._case.input_tokens, None)
        parts, cache = self._arena.peak_components(), out.past_key_values
        del out
        return _with_cache(parts, self._held_bytes(cache))

    def _decode(self, model: Any) -> dict[str, int]:
        """The last token; the pass that fills the cache before it does not count."""
        kept = self._case.input_tokens + self._case.output_tokens - 1
        cache = self._forward(model, kept - 1, kept - 1, None).past_key_values
        self.cache_bytes = self._held_bytes(cache)
        out = self._forward(model, 1, kept, cache)
        del out, cache
        return _with_cache(self._arena.peak_components(), self.cache_bytes)

    def _held_bytes(self, cache: Any) -> int:
        """What is held beside weights and workspace while nothing but a cache is alive."""
        self._arena.forget_peak()
        return self._arena.peak_components().get(ACTIVATIONS, 0) if cache is not None else 0

    def _forward(self, model: Any, tokens: int, seen: int, cache: Any) -> Any:
        """As `generation/utils.py: _sample`: logits of the last position, and their copy in fp32."""
        batch = self._case.batch_size
        out = model(
            input_ids=torch.empty((batch, tokens), dtype=torch.int64, device=GPU),
            attention_mask=torch.empty((batch, seen), dtype=torch.int64, device=GPU),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        scores = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
        chosen = torch.argmax(scores, dim=-1)
        del scores, chosen
        return out
