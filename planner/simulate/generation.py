"""One `generate` call of transformers on shapes: the prompt's pass, and the last new token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from planner.errors import CaseError
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.serving.case import GenerationCase, parse_serving_case
from planner.serving.forecast import GenerationForecast
from planner.serving.generate import forecast_generation, outside_bytes
from planner.simulate.cuda_paths import cuda_paths
from planner.simulate.model import DTYPES
from planner.simulate.quiet import quiet
from planner.simulate.recorder import GPU, Recorder
from planner.simulate.unknown import transformers_config
from planner.tables import HOPPER, gpu, workspace_bytes

ANY_GPU = "a100-80gb"


def simulate_generation(content: Mapping[str, Any]) -> GenerationForecast:
    """Forecast a call by running the model's real code on shapes, without gradients.

    What a verdict needs beside the peak, such as the largest batch, is the formula's.

    Raises:
        CaseError: for a case that cannot be simulated, with the reason.
    """
    began = time.perf_counter()
    case = parse_serving_case(content)
    if not isinstance(case, GenerationCase):
        raise CaseError(
            "tier simulate takes engine transformers, SGLang runs code of its own; use tier formula"
        )
    if case.plan.kind != "none" or case.card.on_cpu:
        raise CaseError("tier simulate takes unquantised weights on a GPU; use tier formula")
    moments = GenerationRun(case, transformers_config(dict(content["hf_config"]))).play()
    phase = max(moments, key=lambda name: sum(moments[name].values()))
    parts, formula = moments[phase], forecast_generation(case)
    peak, budget = sum(parts.values()), formula.budget_bytes
    fits = None if budget is None else peak <= budget
    return replace(
        formula,
        tier="simulate",
        weights_bytes=parts["weights"],
        peak_allocated_bytes=peak,
        device_used_bytes=peak + outside_bytes(case),
        phase=phase,
        components=parts,
        fits=fits,
        label=formula.label if fits == formula.fits else "fits" if fits else "does not fit",
        seconds=time.perf_counter() - began,
    )


class GenerationRun:
    """A model on the simulated GPU that answers a batch of prompts."""

    def __init__(self, case: GenerationCase, config: Any) -> None:
        self._case, self._config = case, config
        self._device = case.card.name or ANY_GPU
        self._arena = Arena(gpu_allocator())
        self._recorder = Recorder(self._arena, workspace_bytes(self._device), offloads=False)

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
        self._recorder.label, self._recorder.answer = "activations", not case.masked
        return model.eval()

    def _prefill(self, model: Any) -> dict[str, int]:
        self._arena.forget_peak()
        out = self._forward(model, self._case.input_tokens, self._case.input_tokens, None)
        del out
        return self._arena.peak_components()

    def _decode(self, model: Any) -> dict[str, int]:
        """The last token; the pass that fills the cache before it does not count."""
        kept = self._case.input_tokens + self._case.output_tokens - 1
        cache = self._forward(model, kept - 1, kept - 1, None).past_key_values
        self._arena.forget_peak()
        out = self._forward(model, 1, kept, cache)
        del out, cache
        return self._arena.peak_components()

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
