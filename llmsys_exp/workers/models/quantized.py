"""Models whose weights are quantised: by bitsandbytes while loading, or with GPTQ in their own folder."""

from __future__ import annotations

import importlib.util
from typing import Any

from llmsys_exp.config.schema import QuantizationConfig, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.workers.job import Job
from llmsys_exp.workers.models.hub import hub_arguments
from llmsys_exp.workers.models.random_weights import random_model
from llmsys_exp.workers.models.shape import model_shape

GPTQ = "gptq"
NEEDS = {GPTQ: ("gptqmodel", "optimum"), "bnb": ("bitsandbytes",)}


def quantized_model(job: Job, *, device: Any, **arguments: Any) -> Any:
    """Load the base of a qlora run onto the device; random weights are quantised like a checkpoint's."""
    from transformers import AutoModelForCausalLM

    settings = job.config.method.quantization
    check_packages(settings.kind)
    arguments["device_map"] = {"": device}
    if settings.kind == GPTQ:
        _check_gptq_folder(job)
        # the fastest kernels have no backward pass
        arguments["quantization_config"] = _gptq_config(job, backend="auto_trainable")
        return AutoModelForCausalLM.from_pretrained(job.model_source, **arguments, **hub_arguments(job))
    arguments["quantization_config"] = bnb_config(settings, arguments["dtype"])
    if job.config.model.weights is Weights.random:
        return _quantise_random(job, arguments)
    return AutoModelForCausalLM.from_pretrained(job.model_source, **arguments, **hub_arguments(job))


def bnb_config(settings: QuantizationConfig, compute: Any) -> Any:
    """Return how transformers tells bitsandbytes to quantise."""
    from transformers import BitsAndBytesConfig

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


def check_packages(kind: str) -> None:
    """Refuse a quantised base where a package is missing, or the CUDA device that bitsandbytes needs."""
    import torch

    lacks = [f"the package {name}" for name in NEEDS[kind] if importlib.util.find_spec(name) is None]
    # gptqmodel has a kernel for every device; bitsandbytes packs on the GPU
    if kind != GPTQ and not torch.cuda.is_available():
        lacks.insert(0, "a CUDA device")
    if lacks:
        packages = "llmsys-exp[quant]" if kind == "bnb" else " ".join(NEEDS[kind])
        raise UserError(
            f"qlora on a {kind} base needs {' and '.join(lacks)}",
            where="method.kind=qlora",
            do=f"Set method=lora, or on a GPU machine run: pip install '{packages}'",
        )


def _quantise_random(job: Job, arguments: dict[str, Any]) -> Any:
    """Draw the weights on the host and load them as if they were a file, which packs each on its way."""
    plain = {key: arguments[key] for key in ("dtype", "attn_implementation")}
    drawn = random_model(job, device="cpu", **plain)
    kind, weights = type(drawn), drawn.state_dict()
    shape = drawn.config
    del drawn
    return kind.from_pretrained(None, config=shape, state_dict=weights, **arguments)


def _check_gptq_folder(job: Job) -> None:
    stored = getattr(model_shape(job), "quantization_config", None) or {}
    found = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    if str(getattr(found, "value", found)) != GPTQ:
        raise UserError(
            "The model is not quantised with GPTQ",
            where=f"method.quantization.kind=gptq, {job.model_source}",
            why=f"Its config.json says quant_method {found}" if found else "Its config.json names no method",
            do="Give model.path a GPTQ folder (the step `quantize` writes one), or use kind=bnb",
        )


def _gptq_config(job: Job, *, backend: str) -> Any:
    from transformers import GPTQConfig

    stored = model_shape(job).quantization_config
    known = stored if isinstance(stored, dict) else stored.to_dict()
    return GPTQConfig(bits=known["bits"], backend=backend)
