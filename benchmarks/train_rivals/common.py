"""What the hand-written loop and the Trainer share: the model, plain or with adapters, and the tokens."""

from __future__ import annotations

from typing import Any

from benchmarks.train_rivals.job import Job


def load_model(job: Job) -> Any:
    """Load the folder in the job's type; with adapters for LoRA."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if job.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job.model_folder, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    if job.method == "full":
        return model
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=job.lora_rank, lora_alpha=job.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, adapters)


def load_tokens(job: Job) -> Any:
    """Token ids, mask and labels of every row, in order."""
    from datasets import load_from_disk

    return load_from_disk(str(job.tokens_folder))["train"]
