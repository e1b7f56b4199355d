"""Load a model and its tokenizer as the configuration says."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import Dtype, MethodKind, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job, settled


def torch_dtype(dtype: Dtype) -> Any:
    """Return torch's name for a storage type."""
    import torch

    names = {Dtype.fp32: torch.float32, Dtype.fp16: torch.float16, Dtype.bf16: torch.bfloat16}
    return names[settled(dtype, "training.dtype")]


def load_tokenizer(job: Job, *, source: str | None = None) -> Any:
    """Load the tokenizer and see to it that it can pad."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source or job.model_source, **_hub_arguments(job))
    except (OSError, ValueError) as error:
        raise _cannot_load("tokenizer", job, error) from error
    if tokenizer.pad_token_id is None:
        # padding is masked everywhere, so any token does
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def load_base_model(job: Job, *, device: Any) -> Any:
    """Load or build the model that training starts from, on the host (quantised ones: on the device)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    arguments = _hub_arguments(job) | {
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
        raise _cannot_load("model", job, error) from error


def load_model_folder(job: Job, folder: str) -> Any:
    """Load a finished model (the base or a merged one) in the run's compute type."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch_dtype(job.config.training.dtype),
            attn_implementation=_attention(job),
            **_hub_arguments(job),
        ).eval()
    except OSError as error:
        raise _cannot_load("model", job, error) from error


def use_liger(model: Any, job: Job) -> None:
    """Replace the model's loss, norms and rotary embedding by Liger's fused kernels."""
    if job.resolved.device == "cpu":
        raise UserError(
            "Liger kernels need a GPU", where="training.liger=true", do="Set training.liger=false"
        )
    if importlib.util.find_spec("liger_kernel") is None:
        raise UserError(
            "The package liger-kernel is not installed",
            where="training.liger=true",
            do="Run: pip install liger-kernel, or set training.liger=false",
        )
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model)


def check_vocabulary(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with more tokens than the model knows."""
    known = model.config.get_text_config().vocab_size
    if len(tokenizer) > known:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, the model knows {known}",
            where="model.path",
            why="Their files do not belong together",
            do="Give a folder that holds both from one source",
        )


def _hub_arguments(job: Job) -> dict[str, Any]:
    return {
        "revision": job.config.model.revision or "main",
        "trust_remote_code": job.config.model.trust_remote_code,
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


def _cannot_load(what: str, job: Job, error: Exception) -> UserError:
    reason = (str(error).splitlines() or [""])[0]
    return UserError(
        f"The {what} cannot be loaded: {reason}",
        where=f"model.id={job.config.model.id}, from {job.model_source}",
        do="Set model.path to a folder with config.json, weights and tokenizer",
    )
