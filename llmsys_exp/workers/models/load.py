"""Load or build a model as the configuration says."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import Dtype, MethodKind, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job, settled
from llmsys_exp.workers.models.hub import cannot_load, hub_arguments
from llmsys_exp.workers.models.quantized import quantized_model
from llmsys_exp.workers.models.random_weights import random_model


def torch_dtype(dtype: Dtype) -> Any:
    """Return torch's name for a storage type."""
    import torch

    names = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}
    return names[settled(dtype, "training.dtype")]


def load_base_model(job: Job, *, device: Any) -> Any:
    """Load or build the model that training starts from, in the compute type and on the device.

    Inside `built_sharded` at stage 3 each rank gets its shards alone.
    """
    from transformers import AutoModelForCausalLM
    from transformers.integrations import is_deepspeed_zero3_enabled

    arguments = _arguments(job)
    try:
        if job.config.method.kind is MethodKind.qlora:
            return quantized_model(job, device=device, **arguments)
        if job.config.model.weights is Weights.random:
            return random_model(job, device=device, **arguments)
        if device.type == "cuda" and not is_deepspeed_zero3_enabled():
            arguments["device_map"] = {"": device}  # weights go there one by one: no copy a rank on the host
        return AutoModelForCausalLM.from_pretrained(job.model_source, **arguments, **hub_arguments(job))
    except OSError as error:
        raise cannot_load("model", job, error) from error


def load_model_folder(job: Job, folder: str) -> Any:
    """Load a finished model (the base or a merged one) in the run's compute type."""
    from transformers import AutoModelForCausalLM

    from llmsys_exp.workers.ranks import pick_device

    if job.config.model.weights is Weights.random and folder == job.model_source:
        # other devices draw other numbers from a seed, and `quantized_model` draws on the host
        packed = job.config.method.kind is MethodKind.qlora
        device = "cpu" if packed else pick_device(job.resolved.device)
        return random_model(job, device=device, **_arguments(job)).eval()
    try:
        return AutoModelForCausalLM.from_pretrained(folder, **_arguments(job), **hub_arguments(job)).eval()
    except OSError as error:
        raise cannot_load("model", job, error) from error


def _arguments(job: Job) -> dict[str, Any]:
    return {
        "dtype": torch_dtype(job.config.training.dtype),
        "attn_implementation": _attention(job),
    }


def _attention(job: Job) -> str:
    wanted = job.config.training.attention
    if wanted == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise UserError(
            "The package flash-attn is not installed",
            where="training.attention=flash_attention_2",
            do="Run: pip install flash-attn --no-build-isolation, or set training.attention=sdpa",
        )
    return wanted
