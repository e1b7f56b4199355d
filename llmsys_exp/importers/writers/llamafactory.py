"""`--to llamafactory`: a training YAML, its ds_config.json, and a dataset_info.json where it needs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Config, DataFormat, MethodKind, ModelKind, Optimizer, Scheduler, Weights
from llmsys_exp.errors import UserError
from llmsys_exp.importers.writers import ds
from llmsys_exp.importers.writers.exported import Exported, Telling
from llmsys_exp.importers.writers.lf_data import dataset_keys
from llmsys_exp.plan.case import world_size

ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
OPTIMIZERS = {
    Optimizer.torch_adamw: "adamw_torch",
    Optimizer.torch_adamw_fused: "adamw_torch_fused",
    Optimizer.adamw_8bit: "adamw_bnb_8bit",
    Optimizer.paged_adamw_8bit: "paged_adamw_8bit",
    Optimizer.paged_adamw: "paged_adamw_32bit",
    Optimizer.adafactor: "adafactor",
}


def write(config: Config, path: Path) -> Exported:
    """Return YAML, ds_config and dataset_info.

    Raises:
        UserError: for what LLaMA-Factory does not train.
    """
    _check(config)
    told = Telling(config)
    ds_path = path.with_suffix(".ds.json")
    folder = path.with_name(f"{path.stem}_data")
    data, info = dataset_keys(config, told, folder)
    keys: dict[str, Any] = {
        **_model(config),
        "stage": "pt" if config.data.format is DataFormat.text else "sft",
        "do_train": True,
        **_method(config, told),
        "deepspeed": str(ds_path),
        **data,
        **_training(config, told),
        **_saving(config, told),
        "output_dir": f"saves/{config.name}",
        "overwrite_output_dir": False,
    }
    _tell_rest(told)
    files = {path: _yaml(keys, config), ds_path: ds.text(config)}
    if info:
        files[folder / "dataset_info.json"] = json.dumps(info, indent=2) + "\n"
    ranks = world_size(config)
    launch = "FORCE_TORCHRUN=1 " + (f"NPROC_PER_NODE={ranks} " if config.hardware.nodes == 1 else "")
    told.notes.append(
        "LLaMA-Factory stands on its own schedule of transformers: its first step is at a rate of 0 in "
        "a warm-up"
    )
    return Exported(files, told.unmapped, told.notes, f"{launch}llamafactory-cli train {path}")


def _check(config: Config) -> None:
    problem = None
    if config.model.kind is not ModelKind.causal_lm:
        problem = ("LLaMA-Factory trains language models only", "model.kind")
    elif config.data.format is DataFormat.preference:
        problem = ("Its sft stage has no rows of preferences", "data.format")
    elif config.method.lora.train_base and config.method.kind is MethodKind.lora:
        problem = ("LLaMA-Factory cannot train the base beside adapters", "method.lora.train_base")
    elif config.method.kind is MethodKind.freeze and config.method.freeze.modules:
        problem = ("LLaMA-Factory freezes by layers here, not by names", "method.freeze.modules")
    elif config.method.lora.alpha != int(config.method.lora.alpha):
        problem = ("LLaMA-Factory takes a whole number for lora_alpha", "method.lora.alpha")
    if problem is not None:
        raise UserError(problem[0], where=problem[1], do="Choose another format, or train with llmsys")


def _yaml(keys: dict[str, Any], config: Config) -> str:
    import yaml

    head = (
        f"# {config.name}: written by llmsys export-config for {world_size(config)} x {config.hardware.gpu}\n"
    )
    return head + yaml.safe_dump(
        {key: value for key, value in keys.items() if value is not None}, sort_keys=False
    )


def _model(config: Config) -> dict[str, Any]:
    model = config.model
    return {
        "model_name_or_path": model.id if model.path is None else str(shipped_path(model.path)),
        "model_revision": model.revision,
        "trust_remote_code": model.trust_remote_code or None,
        "train_from_scratch": model.weights is Weights.random or None,
    }


def _method(config: Config, told: Telling) -> dict[str, Any]:
    kind = config.method.kind
    if kind is MethodKind.freeze:
        return {"finetuning_type": "freeze", "freeze_trainable_layers": config.method.freeze.last_layers}
    if kind is MethodKind.full:
        return {"finetuning_type": "full"}
    lora = config.method.lora
    if config.training.dtype.value != "fp32":
        told.lose_unless("method.lora.adapter_dtype", "fp32", "LLaMA-Factory keeps adapters in fp32, "
            "which ZeRO below stage 3 casts down",
                         "Set method.lora.adapter_dtype=fp32", matters=config.zero.stage == 3)  # fmt: skip
    keys: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": lora.r,
        "lora_alpha": int(lora.alpha),
        "lora_dropout": lora.dropout,
        "lora_target": "all" if lora.targets == "all-linear" else ",".join(lora.targets),
        "use_dora": lora.use_dora or None,
        "use_rslora": lora.use_rslora or None,
        "additional_target": ",".join(lora.modules_to_save) or None,
        "adapter_name_or_path": lora.adapter,
    }
    return keys if kind is MethodKind.lora else {**keys, **_quantization(config, told)}


def _quantization(config: Config, told: Telling) -> dict[str, Any]:
    stored = config.method.quantization
    if stored.kind != "bnb":
        return {}  # the model folder says that it is GPTQ
    told.lose_unless("method.quantization.prepare_for_kbit_training", False,
                     "LLaMA-Factory leaves what is not quantised in the compute "
                         "type", matters=False)  # fmt: skip
    return {
        "quantization_method": "bnb",
        "quantization_bit": stored.bits,
        "quantization_type": stored.quant_type,
        "double_quantization": stored.double_quant,
    }


def _training(config: Config, told: Telling) -> dict[str, Any]:
    training = config.training
    constant = "constant_with_warmup" if training.warmup_steps or training.warmup_ratio else "constant"
    optimizer = OPTIMIZERS.get(training.optimizer)
    return {
        "per_device_train_batch_size": int(training.micro_batch),
        "gradient_accumulation_steps": int(training.grad_accum),
        "learning_rate": training.learning_rate,
        "weight_decay": training.weight_decay,
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_epsilon": training.adam_eps,
        "max_grad_norm": training.gradient_clipping,
        "num_train_epochs": training.epochs,
        "max_steps": training.max_steps,
        "lr_scheduler_type": constant
        if training.scheduler is Scheduler.constant
        else training.scheduler.value,
        "warmup_steps": training.warmup_steps,
        "warmup_ratio": _warmup_ratio(config, told),
        "optim": optimizer,  # else the one of the ds_config
        "bf16": training.dtype.value == "bf16" or None,
        "fp16": training.dtype.value == "fp16" or None,
        "seed": config.seed,
        "full_determinism": training.deterministic or None,
        **_network(config, told),
    }


def _warmup_ratio(config: Config, told: Telling) -> float | None:
    """LLaMA-Factory 0.9.5 asks for transformers up to 5.6, which has the key; 5.17 has lost it."""
    training = config.training
    if training.warmup_steps is not None or not training.warmup_ratio:
        return None
    told.notes.append(
        f"warm-up: where transformers knows no warmup_ratio, write warmup_steps: {training.warmup_ratio:g}"
    )
    return training.warmup_ratio


def _network(config: Config, told: Telling) -> dict[str, Any]:
    training = config.training
    kept = training.gradient_checkpointing is True
    if kept and training.checkpointing.value == "deepspeed":
        told.lose("training.checkpointing", "transformers' own checkpointing is used", matters=False)
    return {
        "flash_attn": ATTENTION[training.attention],
        "disable_gradient_checkpointing": not kept,
        "use_reentrant_gc": training.checkpointing.value == "reentrant" if kept else None,
        "enable_liger_kernel": training.liger,
    }


def _saving(config: Config, told: Telling) -> dict[str, Any]:
    training, kept = config.training, config.checkpoint
    evaluates = training.evaluate_every is not None and (config.data.heldout or config.data.heldout_split)
    if kept.keep_best:
        told.lose("checkpoint.keep_best", "checkpoints are kept by age alone", matters=False)
    return {
        "logging_steps": training.log_every,
        "save_strategy": "no" if kept.every is None else "steps",
        "save_steps": kept.every,
        "save_total_limit": None if kept.every is None else kept.keep_last,
        "eval_strategy": "steps" if evaluates else None,
        "eval_steps": training.evaluate_every if evaluates else None,
        "early_stopping_steps": training.early_stop_patience if evaluates else None,
        "report_to": [mirror.value for mirror in config.tracking.mirrors] or "none",
    }


def _tell_rest(told: Telling) -> None:
    config = told.config
    if config.training.dtype.value == "fp32":
        told.lose(
            "training.dtype",
            "LLaMA-Factory computes in the type the weights are stored in",
            "Convert the weights first",
        )
    told.lose_unless("training.loss", "stock", "the loss is transformers' own", matters=False)
    told.lose_unless("training.liger_kernels", [], "all kernels of Liger are used", matters=False)
    told.lose_unless("training.early_stop_min_delta", 0.0, "any lower loss counts as better", matters=False)
    told.lose_unless("training.bad_steps_allowed", 0, "no step is left out", matters=False)
    if config.training.weight_decay:
        told.lose("training.weight_decay", "transformers leaves biases and norms out of it", matters=False)
    if config.training.expandable_segments is True:
        told.notes.append(
            "memory: start it with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, as the plan assumes"
        )
