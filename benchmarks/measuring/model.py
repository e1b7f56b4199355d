"""Builds the model and DeepSpeed's configuration of a case."""

from __future__ import annotations

from typing import Any

from planner.simulate.settings import merged


def ds_config(case: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for a case."""
    zero: dict[str, Any] = {"stage": case.get("zero_stage", 0)}
    for key in ("offload_optimizer", "offload_param"):
        device = case.get(key, "none")
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
            if device == "nvme":
                zero[key]["nvme_path"] = "/tmp/nvme"
    given = case.get("deepspeed") or {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": case.get("grad_accum", 1),
        "gradient_clipping": 1.0,
        "zero_optimization": merged(zero, given.get("zero_optimization", {})),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10_000,
    }
    config |= {k: v for k, v in given.items() if k != "zero_optimization"}
    if case.get("dtype", "bf16") != "fp32":
        config[case.get("dtype", "bf16")] = {"enabled": True}
    made_by_deepspeed = {"deepspeed_adamw": "AdamW", "lion": "Lion"}
    name = made_by_deepspeed.get(case.get("optimizer", "deepspeed_adamw"))
    if name is not None:
        config["optimizer"] = {"type": name, "params": {"lr": 1e-4}}
    return config


def model_of(case: dict[str, Any], config: dict[str, Any]) -> Any:
    """Build the model as the case says: under zero.Init at stage 3, else on the GPU in its dtype."""
    import deepspeed
    import torch
    import torch._dynamo
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[case.get("dtype", "bf16")]
    raw = dict(case["hf_config"])
    hf = AutoConfig.for_model(raw.pop("model_type"), **raw)
    hf.use_cache = False
    if case.get("zero_stage", 0) == 3:
        hf.pad_token_id = None
    attention = case.get("attention", "sdpa")
    if case["method"] == "qlora":
        make = gptq if case["quantization"].get("kind") == "gptq" else quantized
        return make(case, hf, dtype, attention)
    if case.get("zero_stage", 0) == 3:
        with deepspeed.zero.Init(config_dict_or_path=config, dtype=dtype):
            return AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)


def quantized(case: dict[str, Any], hf: Any, dtype: Any, attention: str) -> Any:
    """Build on the CPU and let bitsandbytes quantise each linear layer on its way to the GPU."""
    import bitsandbytes as bnb
    import torch
    from peft import prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM

    q = case["quantization"]
    model = AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name.endswith("lm_head"):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        bias = module.bias is not None
        if q["bits"] == 4:
            new = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=bias, compute_dtype=dtype,
                compress_statistics=q["double_quant"], quant_type=q["quant_type"], quant_storage=dtype,
            )  # fmt: skip
            new.weight = bnb.nn.Params4bit(
                module.weight.data, requires_grad=False, quant_type=q["quant_type"],
                compress_statistics=q["double_quant"], quant_storage=dtype,
            )  # fmt: skip
        else:
            new = bnb.nn.Linear8bitLt(
                module.in_features, module.out_features, bias=bias, has_fp16_weights=False
            )
            new.weight = bnb.nn.Int8Params(module.weight.data, requires_grad=False, has_fp16_weights=False)
        if bias:
            new.bias = module.bias
        setattr(parent, name.rpartition(".")[2], new)
    model.cuda()
    model.is_loaded_in_4bit = q["bits"] == 4
    if q.get("prepare_for_kbit_training", True):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            if parameter.dtype in (torch.bfloat16, torch.float16) and not hasattr(parameter, "quant_state"):
                parameter.data = parameter.data.float()
    assert prepare_model_for_kbit_training is not None
    return model


def gptq(case: dict[str, Any], hf: Any, dtype: Any, attention: str) -> Any:
    """GPTQModel's layers in the place of those of each block, as if they came from a file."""
    from optimum.gptq import GPTQQuantizer
    from transformers import AutoModelForCausalLM

    q = case["quantization"]
    model = AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)
    packer = GPTQQuantizer(
        bits=q["bits"], group_size=q.get("group_size", 128), desc_act=False, sym=True, backend="auto_trainable"
    )  # fmt: skip
    return packer.post_init_model(packer.convert_model(model, device_map={"": "cuda:0"}).cuda())


def prepare(case: dict[str, Any], model: Any) -> Any:
    """Adapters, frozen layers, checkpointing, Liger kernels."""
    import torch

    if case.get("liger"):
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        kernels = case.get("liger_kernels")
        every = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")
        chosen = {} if kernels is None else {name: name in kernels for name in every}
        _apply_liger_kernel_to_instance(model=model, **chosen)
    if case.get("loss") == "chunked":
        from deepspeed.runtime.chunked_cross_entropy import install_chunked_causal_lm_loss

        install_chunked_causal_lm_loss(model)
    if case["method"] in ("lora", "qlora"):
        model = adapted(case["lora"], model)
    if case["method"] == "freeze":
        layers = model.model.layers
        keep = {id(p) for layer in layers[-case["freeze"]["last_layers"] :] for p in layer.parameters()}
        if not model.config.tie_word_embeddings:
            keep |= {id(p) for p in model.lm_head.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in keep)
    if case.get("gradient_checkpointing"):
        checkpoint(case.get("checkpointing") or {}, model)
        if case["method"] in ("lora", "qlora"):
            model.enable_input_require_grads()
    model.train()
    assert torch.cuda.is_available()
    return model


def adapted(lora: dict[str, Any], model: Any) -> Any:
    """A peft model."""
    from peft import LoraConfig, get_peft_model

    plain = {k: lora[k] for k in ("use_dora", "use_rslora", "modules_to_save") if k in lora}
    model = get_peft_model(
        model,
        LoraConfig(
            r=lora["r"], lora_alpha=2 * lora["r"], lora_dropout=lora.get("dropout", 0.0),
            target_modules=lora["target_modules"], task_type="CAUSAL_LM", **plain,
        ),
        autocast_adapter_dtype=lora.get("adapter_dtype") == "fp32",
    )  # fmt: skip
    if lora.get("train_base"):
        for parameter in model.parameters():
            parameter.requires_grad_(True)
    return model


def checkpoint(how: dict[str, Any], model: Any) -> None:
    """Checkpointing as transformers does it, or with DeepSpeed's function in its place."""
    kind = how.get("kind", "non_reentrant")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": kind == "reentrant"})
    if kind == "deepspeed":
        import deepspeed

        deepspeed.checkpointing.configure(None, checkpoint_in_cpu=how.get("cpu", False))
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = deepspeed.checkpointing.checkpoint
