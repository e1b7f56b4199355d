"""Load or build a model as the configuration says."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import Dtype, MethodKind, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.models.hub import cannot_load, hub_arguments


def torch_dtype(dtype: Dtype) -> Any:
    """Return torch's name for a storage type."""
    import torch

    names = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}
    return names[settled(dtype, "training.dtype")]


def load_base_model(job: Job, *, device: Any) -> Any:
    """Load or build the model that training starts from, on the host (quantised ones: on the device)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    arguments = hub_arguments(job) | {
        "dtype": torch_dtype(job.config.training.dtype),
        "attn_implementation": _attention(job),
    }
    try:
        if job.config.model.weights is Weights.random:
            revision = arguments.pop("revision")
            shape = AutoConfig.from_pretrained(
                job.model_source, revision=revision, trust_remote_code=arguments["trust_remote_code"]
            )
            return AutoModelForCausalLM.from_config(shape, **arguments)
        if job.config.method.kind is MethodKind.qlora:
            arguments |= {"quantization_config": _quantization(job), "device_map": {"": device}}
        return AutoModelForCausalLM.from_pretrained(job.model_source, **arguments)
    except OSError as error:
        raise cannot_load("model", job, error) from error


def load_model_folder(job: Job, folder: str) -> Any:
    """Load a finished model (the base or a merged one) in the run's compute type."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch_dtype(job.config.training.dtype),
            attn_implementation=_attention(job),
            **hub_arguments(job),
        ).eval()
    except OSError as error:
        raise cannot_load("model", job, error) from error


def _attention(job: Job) -> str:
    wanted = job.config.training.attention
    if wanted == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise UserError(
            "The package flash-attn is not installed",
            where="training.attention=flash_attention_2",
            do="Run: pip install flash-attn --no-build-isolation, or set training.attention=sdpa",
        )
    return wanted


def _quantization(job: Job) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if not torch.cuda.is_available() or importlib.util.find_spec("bitsandbytes") is None:
        lack = "a CUDA device" if not torch.cuda.is_available() else "the package bitsandbytes"
        raise UserError(
            f"qlora needs {lack}",
            where="method.kind=qlora",
            do="Set method=lora, or on a GPU machine run: pip install 'llmsys-exp[quant]'",
        )
    settings, compute = job.config.method.quantization, torch_dtype(job.config.training.dtype)
    if settings.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.quant_type,
        bnb_4bit_use_double_quant=settings.double_quant,
        bnb_4bit_compute_dtype=compute,
        # ZeRO-3 can shard packed weights only when they are stored in a floating type
        bnb_4bit_quant_storage=compute,
    )
