"""Arguments of transformers' Trainer as JSON, YAML or flags, with those of model, data and adapters.

The names of the latter are those that scripts share: `run_clm.py`, trl's `SFTConfig` and `ModelConfig`,
Alpaca's `train.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.importers import hf_arguments as hf
from llmsys_exp.importers.data_sources import put_rows, start_data
from llmsys_exp.importers.ds_named import put_named, put_none
from llmsys_exp.importers.hf_keys import REASONS as TRAINER
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.models import put_model
from llmsys_exp.importers.sheet import Sheet

NAME = "training_arguments"
MODEL = ("model_name_or_path", "model_name", "base_model_name_or_path")
DATA = ("train_file", "dataset_name", "data_path", "dataset")
LENGTH = ("max_length", "max_seq_length", "model_max_length", "block_size", "max_seq_len")
REASONS = {
    **TRAINER,
    "hub_private_repo": "",
    "parallelism_config": "training is data-parallel only",
    "accelerator_config": "",
    "torch_empty_cache_steps": "",
    "average_tokens_across_devices": "each rank averages over its own tokens",
    "eval_on_start": "",
    "eval_delay": "",
    "eval_do_concat_batches": "",
    "eval_use_gather_object": "",
    "batch_eval_metrics": "",
    "include_for_metrics": "",
    "restore_callback_states_from_checkpoint": "",
    "ignore_data_skip": "",
    "jit_mode_eval": "",
    "length_column_name": "",
    "torch_compile_backend": "",
    "torch_compile_mode": "",
    "dataset_text_field": "the text column is told apart by the rows  Set data.columns",
    "dataset_num_proc": "",
    "dataset_config_name": "configurations of a hub data set have a setting of their own  Set "
    "data.subset=NAME",
    "validation_file": "a held-out file has a setting of its own  Set data.heldout=FILE",
    "enable_jit_checkpoint": "",
    "project": "",
    "trackio_space_id": "",
    "log_level_replica": "",
    "logging_nan_inf_filter": "",
    "ddp_broadcast_buffers": "",
    "optim_args": "",
    "optim_target_modules": "all trained weights share one optimizer",
    "debug": "",
    "liger_kernel_config": "Liger's kernels are used together  Set training.liger_kernels=[...]",
    "hub_always_push": "",
    "hub_revision": "",
    "use_liger_kernel": "",
    "lr_scheduler_kwargs": "schedules have no parameters beside the warm-up",
    "trust_remote_code": "",
    "use_fast_tokenizer": "",
    "torch_dtype": "",
    "dtype": "",
}


def read(path: Path, content: Mapping[str, Any], sheet: Sheet) -> Imported:
    """Map the arguments."""
    key = next((one for one in MODEL if sheet.has(one)), None)
    if key is not None:
        put_model(sheet, str(sheet.take(key)), key=key)
    elif not sheet.groups.get("model"):
        sheet.note("the file says nothing of the model: add model=NAME, or llmsys's default holds")
    put_arguments(sheet)
    return sheet.done(NAME)


def put_arguments(sheet: Sheet) -> None:
    """Map everything but the model."""
    hf.put_trainer_arguments(sheet)
    _put_data(sheet)
    _put_method(sheet)
    hf.put_evaluation(sheet, has_rows=False)
    _put_network(sheet)
    _put_deepspeed(sheet)
    sheet.rest(REASONS, (*MODEL, *DATA, *LENGTH), tool="the Trainer")


def _put_data(sheet: Sheet) -> None:
    key = next((one for one in DATA if sheet.has(one)), None)
    name = None if key is None else str(sheet.take(key))
    start_data(sheet, [name] if name else [])
    if name is not None and key is not None:
        put_rows(sheet, name, key=key)
    else:
        sheet.note("the file says nothing of the data: give data.train=FILE before training")
    length = next((one for one in LENGTH if sheet.has(one)), None)
    if length is not None:
        sheet.put("data.max_length", sheet.count(length))
    else:
        sheet.note(
            "the file says nothing of the length of examples: data.max_length stays at llmsys's default"
        )
    if sheet.flag("packing"):
        sheet.put("data.packing", True)


def _put_method(sheet: Sheet) -> None:
    rank = sheet.count("lora_r")
    wanted = sheet.flag("use_peft", rank is not None and sheet.groups.get("method") != "full")
    in_4, in_8 = sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    bits = 4 if in_4 else 8 if in_8 else None
    if sheet.groups.get("method"):  # an adapter beside the arguments has said so
        return
    if not wanted:
        sheet.choose("method", "full")
        return
    sheet.choose("method", "lora" if bits is None else "qlora")
    if bits is not None:
        sheet.put("method.quantization.bits", bits)
    sheet.put("method.lora.r", rank or 16)
    sheet.put("method.lora.alpha", sheet.number("lora_alpha", 32))
    sheet.put("method.lora.dropout", sheet.number("lora_dropout", 0.05))
    targets = _targets(sheet.take("lora_target_modules"))
    sheet.put("method.lora.targets", targets or "all-linear")
    if not targets:
        sheet.note(
            "lora_target_modules: not given; all linear layers stand in for peft's choice of the family"
        )


def _targets(value: Any) -> list[str] | str:
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return "all-linear" if parts == ["all-linear"] else parts
    return [str(one) for one in value or []]


def _put_network(sheet: Sheet) -> None:
    sheet.put("training.gradient_checkpointing", sheet.flag("gradient_checkpointing"))
    options = sheet.take("gradient_checkpointing_kwargs", {})
    if isinstance(options, Mapping) and options.get("use_reentrant") is True:
        sheet.put("training.checkpointing", "reentrant")
    attention = sheet.word("attn_implementation")
    if attention in ("sdpa", "eager", "flash_attention_2"):
        sheet.put("training.attention", attention)
    elif attention is not None:
        sheet.tell(
            "attn_implementation", "there is no such attention; sdpa stands in", "Set training.attention"
        )
    sheet.put("training.liger", sheet.flag("use_liger_kernel"))


def _put_deepspeed(sheet: Sheet) -> None:
    named = sheet.take("deepspeed")
    if named in (None, False, True, ""):
        put_none(sheet)
    else:
        put_named(sheet, named, wanted="this file")
