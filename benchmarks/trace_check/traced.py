"""The same figures from the real transformers code on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planner.training_case import TrainingCase

from .cuda_paths import cuda_paths
from .figures import Figures
from .meter import Meter

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


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


def _prepared(config: dict[str, Any], case: TrainingCase) -> Any:
    model = real_model(config, attention=case.attention, dtype=case.dtype)
    if case.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case.freeze_last_layers:
        _freeze(model, case.architecture.layers, case.freeze_last_layers)
    if case.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    if case.gradient_checkpointing:
        model.enable_input_require_grads()
    targets = case.lora.target_modules
    adapters = LoraConfig(
        r=case.lora.r,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=case.lora.dropout,
        task_type="CAUSAL_LM",
    )
    with torch.device("meta"):
        adapted = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
    return adapted.to(DTYPES[case.lora.adapter_dtype])  # on the meta device peft leaves them fp32


def _freeze(model: Any, layers: int, trained: int) -> None:
    """Train the last blocks and an output layer of its own, as `llmsys_exp/workers/methods.py` does."""
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    model.requires_grad_(False)
    for block in stacks[0][-trained:]:
        block.requires_grad_(True)
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        head.requires_grad_(True)


def traced_figures(config: dict[str, Any], case: TrainingCase) -> Figures:
    """Run forward and backward of one micro-batch on shapes alone."""
    model = _prepared(config, case)
    shape = (case.micro_batch, case.seq_len)
    meter = Meter(answer=not case.padded)  # "no padding?" for a padded batch, "one sequence a row?" else
    with cuda_paths(), meter:
        meter.take([*model.parameters(), *model.buffers()])
        weights = meter.live_bytes
        ids, labels = (torch.empty(shape, dtype=torch.int64, device="meta") for _ in range(2))
        mask = torch.empty(shape, dtype=torch.int64, device="meta") if case.padded else None
        meter.forget_peak()
        loss = model(input_ids=ids, labels=labels, attention_mask=mask, use_cache=False).loss
        forward_end, forward_peak = meter.live_bytes, meter.peak_bytes
        meter.forget_peak()
        loss.backward()
        backward_peak = meter.peak_bytes
    return Figures(
        parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        forward_end_bytes=forward_end - weights,
        forward_peak_bytes=forward_peak - weights,
        backward_peak_bytes=backward_peak - weights,
    )
