"""LLaMA-Factory's training YAML (read in version 0.9.5 of August 2026: `hparams/`, `model/adapter.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.importers import hf_arguments as hf
from llmsys_exp.importers.data_sources import find_beside
from llmsys_exp.importers.ds_named import put_named, put_none
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.llama_factory_data import put_data
from llmsys_exp.importers.llama_factory_keys import REASONS
from llmsys_exp.importers.models import put_model
from llmsys_exp.importers.sheet import Sheet

NAME = "llamafactory"
LOGS = ("trainer_log.jsonl", "trainer_state.json")
STAGES = {"rm": "a reward model", "ppo": "by PPO", "dpo": "by DPO", "kto": "by KTO"}
ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "auto": "sdpa"}


def read(path: Path, content: Mapping[str, Any], sheet: Sheet) -> Imported:
    """Map a training YAML.

    Raises:
        UserError: for a file that trains something else than a language model on answers or text.
    """
    name = _model_name(sheet)
    stage = _check_stage(sheet)
    put_model(sheet, name, key="model_name_or_path", revision=sheet.word("model_revision"))
    if sheet.flag("trust_remote_code"):
        sheet.tell("trust_remote_code", "code that comes with a model is not run unasked",
                   "Set model.trust_remote_code=true once you have read it", matters=False)  # fmt: skip
    if sheet.flag("train_from_scratch"):
        sheet.put("model.weights", "random")
    hf.put_trainer_arguments(sheet)
    _put_method(sheet)
    put_data(sheet, stage)
    _put_network(sheet)
    _put_deepspeed(sheet)
    sheet.rest(REASONS, (), tool="LLaMA-Factory")
    return sheet.done(NAME, logs=_logs(sheet))


def _model_name(sheet: Sheet) -> str:
    name = sheet.word("model_name_or_path")
    if name is None and sheet.has("model"):
        what = "The file is in the newer form of LLaMA-Factory (v1), which is not read"
        raise UserError(what, where=str(sheet.source), do="Give the older one, with model_name_or_path")
    if name is None:
        raise sheet.lacks("model_name_or_path")
    return name


def _check_stage(sheet: Sheet) -> str:
    stage = sheet.word("stage", "sft") or "sft"
    where = str(sheet.source)
    if stage in STAGES:
        raise UserError(
            f"stage: {stage} trains {STAGES[stage]}",
            where=where,
            why="llmsys trains on answers (sft) and on text (pt)",
        )
    if stage not in ("sft", "pt"):
        raise unknown_name("stage", stage, ["sft", "pt", *STAGES], where=where)
    if (
        sheet.has("export_dir")
        or sheet.has("infer_backend")
        or not sheet.flag("do_train", sheet.has("dataset"))
    ):
        raise UserError(
            "The file trains nothing (no do_train: true)",
            where=where,
            do="llmsys export and llmsys infer take a run folder",
        )
    return stage


def _put_method(sheet: Sheet) -> None:
    kind = sheet.word("finetuning_type", "lora") or "lora"
    if kind not in ("lora", "full", "freeze"):
        raise UserError(
            f"finetuning_type: {kind} is not supported",
            where=str(sheet.source),
            do="llmsys has lora, full and freeze",
        )
    bits = sheet.count("quantization_bit")
    method = "qlora" if bits is not None and kind == "lora" else kind
    sheet.choose("method", method)
    if kind == "lora":
        _put_lora(sheet)
    if kind == "freeze":
        _put_freeze(sheet)
    if bits is not None:
        _put_quantization(sheet, bits)
    if kind == "full" and sheet.settings["training.dtype"] in ("bf16", "fp16") and not sheet.has("deepspeed"):
        sheet.note("full, without DeepSpeed: LLaMA-Factory keeps fp32 weights under autocast; llmsys "
            "keeps 16-bit weights"
                   " beside DeepSpeed's fp32 copy, which takes the same steps in fp32")  # fmt: skip


def _put_lora(sheet: Sheet) -> None:
    rank = sheet.whole("lora_rank", 8)
    sheet.put("method.lora.r", rank)
    if not sheet.has("lora_alpha"):
        sheet.note(f"lora_alpha: not given, so twice the rank, {2 * rank}")
    sheet.put("method.lora.alpha", sheet.number("lora_alpha", 2 * rank))
    sheet.put("method.lora.dropout", sheet.number("lora_dropout", 0.0))
    targets = sheet.names("lora_target") or ["all"]
    sheet.put("method.lora.targets", "all-linear" if targets == ["all"] else targets)
    for key, setting in (("use_dora", "use_dora"), ("use_rslora", "use_rslora")):
        if sheet.flag(key):
            sheet.put(f"method.lora.{setting}", True)
    extra = sheet.names("additional_target")
    if extra:
        sheet.put("method.lora.modules_to_save", extra)
    if sheet.settings["training.dtype"] in ("bf16", "fp16"):
        sheet.put("method.lora.adapter_dtype", "fp32")  # peft and LLaMA-Factory both cast them up
    adapter = sheet.word("adapter_name_or_path")
    if adapter is not None:
        sheet.put("method.lora.adapter", adapter)


def _put_freeze(sheet: Sheet) -> None:
    layers = sheet.whole("freeze_trainable_layers", 2)
    if layers < 0:
        sheet.tell(
            "freeze_trainable_layers",
            "the first layers cannot be trained alone",
            "Name them in method.freeze.modules",
        )
    sheet.put("method.freeze.last_layers", abs(layers))
    for key in ("freeze_trainable_modules", "freeze_extra_modules"):
        names = [one for one in sheet.names(key) if one != "all"]
        if names:
            sheet.tell(
                key, "modules are not chosen within the last layers", "Name them in method.freeze.modules"
            )


def _put_quantization(sheet: Sheet, bits: int) -> None:
    kind = sheet.word("quantization_method", "bnb")
    if kind not in ("bnb", "bitsandbytes"):
        sheet.tell("quantization_method", "bases are quantised by bitsandbytes, or are GPTQ folders already",
                   "Give a GPTQ folder and method.quantization.kind=gptq")  # fmt: skip
    sheet.put("method.quantization.bits", bits)
    sheet.put("method.quantization.quant_type", sheet.word("quantization_type", "nf4"))
    sheet.put("method.quantization.double_quant", sheet.flag("double_quantization", True))


def _put_network(sheet: Sheet) -> None:
    wanted = sheet.word("flash_attn", "auto") or "auto"
    if wanted not in ATTENTION:
        sheet.tell("flash_attn", "there is no such attention; sdpa stands in", "Set training.attention")
    sheet.put("training.attention", ATTENTION.get(wanted, "sdpa"))
    off = sheet.flag("disable_gradient_checkpointing")
    sheet.take("gradient_checkpointing")  # LLaMA-Factory sets it itself
    sheet.put("training.gradient_checkpointing", not off)
    if not off:
        reentrant = sheet.flag("use_reentrant_gc", True)
        sheet.put("training.checkpointing", "reentrant" if reentrant else "non_reentrant")
    sheet.put("training.liger", sheet.any_flag("enable_liger_kernel", "use_liger_kernel"))


def _put_deepspeed(sheet: Sheet) -> None:
    named = sheet.take("deepspeed")
    if named is None:
        put_none(sheet)
    else:
        put_named(sheet, named, wanted="the YAML")


def _logs(sheet: Sheet) -> list[Path]:
    """Logs in the output folder, or beside the YAML."""
    folder = sheet.given.get("output_dir")
    found = find_beside(sheet.source, Path(str(folder))) if folder else None
    folders = [one for one in (found, sheet.source.parent.absolute()) if one is not None]
    return [one / name for one in folders for name in LOGS if (one / name).is_file()]
