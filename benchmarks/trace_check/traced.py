"""The same figures from the real transformers code on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena
from planner.simulate.cuda_paths import cuda_paths
from planner.simulate.model import DTYPES, prepare
from planner.simulate.recorder import Recorder
from planner.tables import HOPPER, gpu
from planner.training_case import TrainingCase

from .figures import Figures


def supports(config: dict[str, Any], attention: str) -> bool:
    """Whether the family's code can use this attention at all (Gemma 2 has no sdpa)."""
    hf_config = AutoConfig.for_model(**config)
    return attention == "eager" or AutoModelForCausalLM._model_mapping[type(hf_config)]._supports_sdpa


def real_model(config: dict[str, Any], *, attention: str = "sdpa", dtype: str = "bf16") -> Any:
    """The model that transformers builds, on the meta device."""
    hf_config = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            hf_config, dtype=DTYPES[dtype], attn_implementation=attention
        ).train()


def traced_figures(config: dict[str, Any], case: TrainingCase) -> Figures:
    """Run forward and backward of one micro-batch on shapes alone."""
    model = prepare(case, real_model(config, attention=case.attention, dtype=case.dtype))
    shape = (case.micro_batch, case.seq_len)
    arena = Arena(PlainAllocator())
    recorder = Recorder(arena, 0, offloads=False)
    recorder.answer = not case.padded  # "no padding?" for a padded batch, "one sequence a row?" else
    with cuda_paths(hopper=gpu(case.device).capability == HOPPER), recorder:
        recorder.take([*model.parameters(), *model.buffers()])
        weights = arena.allocator.allocated
        ids, labels = (torch.empty(shape, dtype=torch.int64, device="meta") for _ in range(2))
        mask = torch.empty(shape, dtype=torch.int64, device="meta") if case.padded else None
        arena.end_phase("load")
        loss = model(input_ids=ids, labels=labels, attention_mask=mask, use_cache=False).loss
        arena.end_phase("forward")
        recorder.backward = True
        loss.backward()
        arena.end_phase("backward")
    _, forward, backward = arena.phases
    return Figures(
        parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        forward_end_bytes=forward.end_bytes - weights,
        forward_peak_bytes=forward.peak_bytes - weights,
        backward_peak_bytes=backward.peak_bytes - weights,
    )
