"""The model of a case as its program builds it: transformers' code, peft's adapters, frozen layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from planner.errors import CaseError, did_you_mean
from planner.simulate.recorder import GPU, Recorder
from planner.simulate.shaped.liger_model import apply_kernels
from planner.simulate.shaped.packed import DTYPES, Linear4bit, pack
from planner.training_case import Lora, Method, TrainingCase


def build_model(
    case: TrainingCase, config: Any, ds_config: Mapping[str, Any], recorder: Recorder, *, trust: bool
) -> Any:
    """Build a causal language model: under `zero.Init` at stage 3, else on the GPU in its type.

    Args:
        case: the job.
        config: transformers' configuration.
        ds_config: DeepSpeed's.
        recorder: what is built in main memory first is none of its business.
        trust: whether code that came with the model may be run.

    Raises:
        CaseError: for a padding token that is not in the vocabulary.
    """
    import deepspeed
    from transformers import AutoModelForCausalLM

    dtype = DTYPES[case.dtype]

    def make() -> Any:
        try:
            return AutoModelForCausalLM.from_config(
                config, attn_implementation=case.attention, dtype=dtype, trust_remote_code=trust
            )
        except AssertionError as error:
            if "padding_idx" not in str(error).lower():
                raise
            raise CaseError(_no_such_token(config)) from error

    if case.quantization is not None:
        with recorder.elsewhere(), torch.device(GPU):
            model = make()
        pack(model, case.quantization, dtype)
        return model
    if case.engine == "fsdp2":
        with recorder.elsewhere(), torch.device(GPU):
            return make().to(torch.float32 if case.fsdp.fp32_params else dtype)
    if case.zero_stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=dict(ds_config), dtype=dtype):
            return make()
    with torch.device(GPU):
        return make()


def _no_such_token(config: Any) -> str:
    text = config.get_text_config()
    return (
        f"hf_config.pad_token_id is {text.pad_token_id}, but the vocabulary has {text.vocab_size} tokens; "
        "set it to null or to one of them"
    )


def prepare(case: TrainingCase, model: Any) -> Any:
    """Kernels, adapters, frozen layers and checkpointing, as the worker applies them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.liger:
            apply_kernels(case, model)
        if case.loss == "chunked":
            _install_chunked_loss(model)
        if case.lora is not None:
            model = _adapted(case.lora, model)
        if case.method is Method.freeze:
            _freeze(model, case.freeze_last_layers)
        if case.gradient_checkpointing:
            _checkpoint(case, model)
            if case.lora is not None:
                model.enable_input_require_grads()
    return model.train()


def _install_chunked_loss(model: Any) -> None:
    """DeepSpeed's own loss.

    Raises:
        CaseError: for a model whose loss it does not replace.
    """
    from deepspeed.runtime.chunked_cross_entropy import install_chunked_causal_lm_loss

    try:
        install_chunked_causal_lm_loss(model)
    except ValueError as error:
        raise CaseError(f"loss chunked: {error}") from error


def _adapted(lora: Lora, model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = lora.target_modules
    settings = LoraConfig(
        r=lora.r,
        lora_alpha=2 * lora.r,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(lora.modules_to_save) or None,
        use_dora=lora.use_dora,
        use_rslora=lora.use_rslora,
        task_type="CAUSAL_LM",
    )
    _check_targets(lora, model)
    known = {id(parameter) for parameter in model.parameters()}
    try:
        with torch.device(GPU):
            model = get_peft_model(model, settings, autocast_adapter_dtype=False)
    except ValueError as error:
        raise CaseError(f"lora: {str(error).splitlines()[0]}") from error
    for module in model.modules():
        if isinstance(getattr(module, "base_layer", None), Linear4bit):
            module.base_layer.clones = True
    wanted = DTYPES[lora.adapter_dtype]
    for parameter in model.parameters():  # on the meta device peft leaves adapters in fp32
        if id(parameter) not in known and parameter.requires_grad and parameter.dtype != wanted:
            parameter.data = parameter.data.to(wanted)
        if lora.train_base:
            parameter.requires_grad_(True)
    return model


def _check_targets(lora: Lora, model: Any) -> None:
    """Raises CaseError for a target that no module ends with; peft is content if any of them matches."""
    if isinstance(lora.target_modules, str):
        return
    modules = dict(model.named_modules())
    for target in lora.target_modules:
        if not any(name == target or name.endswith(f".{target}") for name in modules):
            known = {
                name.rpartition(".")[2] for name, one in modules.items() if isinstance(one, torch.nn.Linear)
            }
            raise CaseError(
                f"LoRA target {target!r} names no linear layer of a {model.config.model_type} model. "
                f"{did_you_mean(target, known)}"
            )


def _freeze(model: Any, trained: int) -> None:
    """Train the last blocks and an output layer of its own."""
    layers = model.config.num_hidden_layers
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    if not stacks:
        raise CaseError("freeze: the model has no list of its blocks")
    model.requires_grad_(False)
    for block in stacks[0][-trained:]:
        block.requires_grad_(True)
    head = model.get_output_embeddings()
    if head is not None and head.weight is not model.get_input_embeddings().weight:
        head.requires_grad_(True)


def _checkpoint(case: TrainingCase, model: Any) -> None:
    how = case.checkpointing
    if not model.supports_gradient_checkpointing:
        raise CaseError(f"{type(model).__name__} does not support gradient checkpointing")
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": how.kind == "reentrant"}
    )
    if how.kind == "deepspeed":
        import deepspeed

        deepspeed.checkpointing.configure(None, checkpoint_in_cpu=how.cpu)
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = deepspeed.checkpointing.checkpoint
