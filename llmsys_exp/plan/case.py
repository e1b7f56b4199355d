"""Translates the configuration into the planner's case format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import planner
from llmsys_exp.calibrate.apply import calibration_of
from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import AUTO, Checkpointing, Config, Device, Dtype, Optimizer
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.plan.case_mlp import is_mlp, mlp_shape
from llmsys_exp.plan.method_case import check_stored_weights, method_case
from planner.network.adapters import adapted_names

CPU = "cpu"
NOT_APART = ("opt", "falcon", "bloom", "mpt", "mamba")
"""Families in which packed examples see one another, in transformers 5.17 and 5.23 (`workers.data.apart`)."""
SETTING_OF = {
    "world_size": "hardware.gpus_per_node x hardware.nodes",
    "zero_stage": "zero.stage",
    "offload_optimizer": "offload.optimizer",
    "offload_param": "offload.param",
    "layers": "model.layers",
    "micro_batch": "training.micro_batch",
    "grad_accum": "training.grad_accum",
    "seq_len": "data.max_length",
    "attention": "training.attention",
    "lora.target_modules": "method.lora.targets",
    "lora.use_dora": "method.lora.use_dora",
    "lora.train_base": "method.lora.train_base",
    "lora.modules_to_save": "method.lora.modules_to_save",
    "lora.adapter_dtype": "method.lora.adapter_dtype",
    "lora.dropout": "method.lora.dropout",
    "lora.r": "method.lora.r",
    "freeze.last_layers": "method.freeze.last_layers",
    "quantization.kind": "method.quantization.kind",
    "quantization.bits": "method.quantization.bits",
    "quantization.quant_type": "method.quantization.quant_type",
    "quantization.group_size": "quantization_config.group_size of the model folder",
    "gradient_checkpointing": "training.gradient_checkpointing",
    "checkpointing": "training.checkpointing",
    "checkpointing.kind": "training.checkpointing",
    "checkpointing.cpu": "training.checkpointing_cpu",
    "grad_accum_dtype": "training.grad_accum_dtype",
    "deepspeed.data_types.grad_accum_dtype": "training.grad_accum_dtype",
    "liger_kernels": "training.liger_kernels",
}
"""Key of the case format -> the setting it comes from, for messages."""


def hf_config(config: Config) -> dict[str, Any]:
    """The model's Hugging Face configuration: from its folder, or from the planner's table.

    Raises:
        UserError: when neither gives one.
    """
    model = config.model
    if model.entry is not None:
        if model.entry not in planner.model_names():
            raise unknown_name("model entry", model.entry, planner.model_names(), where="model.entry")
        return planner.model_config(model.entry)
    if model.path is None:
        raise UserError(
            f"the shape of {model.id} is not known",
            where="model.entry and model.path",
            why="The planner reads a shape from its table or from a config.json",
            do="Set model.entry to a row of the table or model.path to a folder with config.json",
        )
    file = shipped_path(model.path) / "config.json"
    try:
        read = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{file} cannot be read", where="model.path", why=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON", where="model.path", why=str(error)) from error
    if not isinstance(read, dict):
        raise UserError(
            f"{file} holds no mapping", where="model.path", do="Name a folder in the format of transformers"
        )
    return cast("dict[str, Any]", read)


def world_size(config: Config) -> int:
    """Ranks of the job."""
    return config.hardware.gpus_per_node * config.hardware.nodes


def case_content(config: Config, *, dtype: str) -> dict[str, Any]:
    """The case of a configuration in the case format; open settings get a neutral value."""
    zero, offload, training = config.zero, config.offload, config.training
    case: dict[str, Any] = {
        **(mlp_shape(config) if is_mlp(config) else _decoder(config, dtype)),
        "gpu": config.hardware.gpu,
        "world_size": world_size(config),
        "zero_stage": 0 if zero.stage == AUTO else zero.stage,
        "offload_optimizer": _fixed(offload.optimizer),
        "offload_param": _fixed(offload.param),
        "micro_batch": 1 if training.micro_batch == AUTO else training.micro_batch,
        "grad_accum": 1 if training.grad_accum == AUTO else training.grad_accum,
        "dtype": dtype,
        "optimizer": _optimizer(training.optimizer),
        "expandable_segments": training.expandable_segments is True,
        "deepspeed": {"zero_optimization": _zero_section(config), **_grad_accum_dtype(config)},
    }
    if zero.stage == AUTO:  # not to be refused for a stage that is still to be chosen
        case |= {"zero_stage": _least_stage(case)}
    return case


def planner_case(config: Config, *, dtype: str) -> planner.TrainingCase:
    """The case of a configuration; the search replaces the neutral values of open settings.

    Raises:
        ConfigError: with everything that the planner refuses.
    """
    try:
        parsed = planner.parse_training_case(case_content(config, dtype=dtype))
        if parsed.lora is not None:
            adapted_names(parsed.architecture, parsed.lora)
    except planner.CaseError as error:
        raise ConfigError([UserError(in_settings(problem)) for problem in error.problems]) from error
    calibration = calibration_of(config.hardware.gpu, dtype=dtype, ranks=world_size(config))
    return parsed if calibration is None else replace(parsed, calibration=calibration)


def _decoder(config: Config, dtype: str) -> dict[str, Any]:
    """The part of the case that says which language model is trained, and how it is run."""
    training, shape = config.training, hf_config(config)
    check_stored_weights(config, shape)
    _check_packing(config, shape)
    case: dict[str, Any] = {
        "hf_config": shape,
        **method_case(config.method, shape, dtype=dtype),
        "seq_len": config.data.max_length,
        "attention": training.attention,
        "liger": training.liger,
        **_checkpointing(config),
        "loss": training.loss.value,
        "padded": False,  # no attention mask: padding stands on the right, where nobody looks
        "packed": config.data.packing,
    }
    if training.liger_kernels:
        case["liger_kernels"] = list(training.liger_kernels)
    return case


def _check_packing(config: Config, shape: Mapping[str, Any]) -> None:
    """Refuse to pack for families whose code is known to look past the border; the worker asks any other."""
    family = shape.get("model_type")
    if config.data.packing and family in NOT_APART:
        raise ConfigError(
            [
                UserError(
                    f"Models of type {family} do not keep packed examples apart",
                    where="data.packing=true",
                    why="Their masks in transformers do not look at positions",
                    do="Set data.packing=false; data.group_by_length=true also saves padding",
                )
            ]
        )


def in_settings(problem: str) -> str:
    """Say with the names of settings what the planner says with the keys of its case format."""
    return re.sub(r"[a-z_.]+", lambda word: SETTING_OF.get(word[0], word[0]), problem)


def _optimizer(optimizer: Optimizer) -> str:
    return "deepspeed_adamw" if optimizer is Optimizer.auto else optimizer.value


def _fixed(device: Device) -> str:
    return "none" if device is Device.auto else device.value


def _least_stage(case: dict[str, Any]) -> int:
    if case["offload_param"] != "none" or case["offload_optimizer"] == "nvme":
        return 3
    return 2 if case["offload_optimizer"] != "none" else 0


def _zero_section(config: Config) -> dict[str, Any]:
    zero = vars(config.zero).copy()
    del zero["stage"]
    if zero["reduce_bucket_size"] == AUTO:
        del zero["reduce_bucket_size"]
    return zero


def _checkpointing(config: Config) -> dict[str, Any]:
    """Whether, and how where it is not the usual way: that alone says that it is wanted where it is open."""
    training = config.training
    kind, on_cpu = training.checkpointing, training.checkpointing_cpu
    if kind is Checkpointing.non_reentrant and not on_cpu:
        return {"gradient_checkpointing": training.gradient_checkpointing is True}
    wanted = training.gradient_checkpointing in (True, AUTO)
    return {"gradient_checkpointing": wanted, "checkpointing": {"kind": kind.value, "cpu": on_cpu}}


def _grad_accum_dtype(config: Config) -> dict[str, Any]:
    kept = config.training.grad_accum_dtype
    if kept in (Dtype.auto, config.training.dtype):
        return {}
    return {"data_types": {"grad_accum_dtype": kept.value}}
