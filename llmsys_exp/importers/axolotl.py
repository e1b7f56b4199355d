"""axolotl's YAML (read in July 2026: `utils/schemas/`, `core/builders/base.py`).

axolotl drops keys that it does not know without a word; here they are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers import hf_arguments as hf
from llmsys_exp.importers.axolotl_data import put_data
from llmsys_exp.importers.axolotl_keys import KNOWN, LIGER, REASONS
from llmsys_exp.importers.data_sources import find_beside
from llmsys_exp.importers.ds_named import put_named, put_none
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.logs.reading import states_in
from llmsys_exp.importers.models import put_model
from llmsys_exp.importers.sheet import Sheet

NAME = "axolotl"
ATTENTION = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2")
MOST_WARMUP = 100


def read(path: Path, content: Mapping[str, Any], sheet: Sheet) -> Imported:
    """Map a training YAML.

    Raises:
        UserError: for a file that trains something else than a language model on answers or text.
    """
    _check_kind(sheet)
    put_model(
        sheet, str(sheet.take("base_model")), key="base_model", revision=sheet.word("revision_of_model")
    )
    if sheet.flag("trust_remote_code"):
        sheet.tell("trust_remote_code", "code that comes with a model is not run unasked",
                   "Set model.trust_remote_code=true once you have read it", matters=False)  # fmt: skip
    if sheet.flag("reinit_weights"):
        sheet.put("model.weights", "random")
    _put_batch(sheet)
    hf.put_length(sheet, "num_epochs", default_epochs=1.0)
    _put_rate(sheet)
    _put_dtype(sheet)
    _put_method(sheet)
    put_data(sheet)
    _put_network(sheet)
    _put_deepspeed(sheet)
    _put_tracking(sheet)
    _drop_padding_token(sheet)
    sheet.rest(REASONS, KNOWN, tool="axolotl")
    return sheet.done(NAME, logs=_logs(sheet))


def _check_kind(sheet: Sheet) -> None:
    where = str(sheet.source)
    if not sheet.has("base_model"):
        raise sheet.lacks("base_model")
    for key, what in (("rl", "learning from preferences or rewards"), ("reward_model", "a reward model"),
                      ("process_reward_model", "a reward model")):  # fmt: skip
        if sheet.take(key) not in (None, False):
            raise UserError(
                f"{key}: {sheet.given[key]} asks for {what}",
                where=where,
                do="llmsys trains on answers and text",
            )
    if sheet.has("adapter") and sheet.given["adapter"] not in ("lora", "qlora"):
        raise UserError(
            f"adapter: {sheet.given['adapter']} is not supported", where=where, do="llmsys has lora and qlora"
        )


def _put_batch(sheet: Sheet) -> None:
    hf.put_batch(sheet, "micro_batch_size", "gradient_accumulation_steps", default_micro=1)
    if sheet.has("batch_size"):
        total = sheet.count("batch_size") or 1
        sheet.put("training.grad_accum", "auto")
        sheet.put("training.global_batch", total)
        sheet.note(f"batch_size: {total} sequences a step over all GPUs; the accumulation follows from it")


def _put_rate(sheet: Sheet) -> None:
    sheet.put("seed", sheet.count("seed", 42))
    if not sheet.has("warmup_steps") and not sheet.has("warmup_ratio"):
        sheet.given["warmup_ratio"] = 0.03
        sheet.note(
            f"warm-up: not given, so 3 % of the steps, and at most {MOST_WARMUP}, which llmsys does not limit"
        )
    hf.put_rate(sheet, default_scheduler="cosine", key="lr_scheduler")
    hf.put_optimizer(sheet, "optimizer")


def _put_dtype(sheet: Sheet) -> None:
    bf16, fp16 = sheet.take("bf16", "auto"), sheet.take("fp16")
    low = sheet.take("bfloat16"), sheet.take("float16")
    if fp16 is True or low[1] is True:
        dtype = "fp16"
    elif bf16 in (True, "true", "full") or low[0] is True:
        dtype = "bf16"
    elif sheet.take("float32") is True or (bf16 is False and fp16 is False):
        dtype = "fp32"
    else:
        dtype = "auto"
        sheet.note("bf16: auto is bf16 on a GPU that has it, else fp16, as training.dtype=auto is")
    sheet.put("training.dtype", dtype)


def _put_method(sheet: Sheet) -> None:
    adapter, four, eight = sheet.word("adapter"), sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    if adapter is None:
        sheet.choose("method", "full")
        if sheet.settings["training.dtype"] != "fp32" and not sheet.has("deepspeed"):
            sheet.note(
                "full, without DeepSpeed: axolotl trains the 16-bit weights themselves; llmsys keeps an fp32 "
                "copy beside them, 4 bytes a parameter more"
            )
        for key in [one for one in sheet.given if one.startswith("lora_") and sheet.has(one)]:
            sheet.tell(key, "no adapter is trained", matters=False)
        if four or eight:
            raise UserError(
                "A base in 4 or 8 bits has no adapter to train",
                where=str(sheet.source),
                do="Add adapter: qlora",
            )
        return
    quantised = four or eight or adapter == "qlora"
    sheet.choose("method", "qlora" if quantised else "lora")
    if quantised:
        sheet.put("method.quantization.bits", 8 if eight and not four else 4)
        if sheet.flag("gptq"):
            sheet.put("method.quantization.kind", "gptq")
    if sheet.settings["training.dtype"] != "fp32":
        sheet.put("method.lora.adapter_dtype", "fp32")  # peft casts them up
    _put_lora(sheet)


def _put_lora(sheet: Sheet) -> None:
    rank = sheet.whole("lora_r", 8)
    sheet.put("method.lora.r", rank)
    sheet.put("method.lora.alpha", sheet.number("lora_alpha", 8))
    sheet.put("method.lora.dropout", sheet.number("lora_dropout", 0.0))
    targets = sheet.names("lora_target_modules")
    linear = sheet.flag("lora_target_linear")
    sheet.put(
        "method.lora.targets", "all-linear" if linear or targets == ["all-linear"] or not targets else targets
    )
    if not linear and not targets:
        sheet.note(
            "lora_target_modules: not given; all linear layers stand in for peft's choice of the family"
        )
    for key, setting in (("peft_use_dora", "use_dora"), ("peft_use_rslora", "use_rslora")):
        if sheet.flag(key):
            sheet.put(f"method.lora.{setting}", True)
    saved = sheet.names("lora_modules_to_save")
    if saved:
        sheet.put("method.lora.modules_to_save", saved)
    if sheet.has("lora_model_dir"):
        sheet.put("method.lora.adapter", sheet.word("lora_model_dir"))


def _put_network(sheet: Sheet) -> None:
    named = sheet.word("attn_implementation")
    asked = [ours for theirs, ours in ATTENTION.items() if sheet.flag(theirs)]
    if named is not None and named not in IMPLEMENTATIONS:
        sheet.tell(
            "attn_implementation", "there is no such attention; sdpa stands in", "Set training.attention"
        )
        named = None
    sheet.put("training.attention", named or next(iter(asked), "sdpa"))
    _put_checkpointing(sheet)
    kernels = [ours for theirs, ours in LIGER.items() if sheet.flag(theirs)]
    if kernels:
        sheet.put("training.liger", True)
        sheet.put("training.liger_kernels", kernels)
    others = [one for one in sheet.names("plugins") if "liger" not in one.lower()]
    if others:
        sheet.tell("plugins", "plugins are not run", "training.liger=true has a fused loss", value=others)


def _put_checkpointing(sheet: Sheet) -> None:
    value = sheet.take("gradient_checkpointing", False)
    if value not in (True, False):
        sheet.tell("gradient_checkpointing", "inputs are kept on the GPU",
                   "training.checkpointing=deepspeed training.checkpointing_cpu=true moves them")  # fmt: skip
    sheet.put("training.gradient_checkpointing", value not in (False, "false"))
    options = sheet.take("gradient_checkpointing_kwargs") or {}
    if isinstance(options, Mapping) and options.get("use_reentrant") is True:
        sheet.put("training.checkpointing", "reentrant")


def _put_deepspeed(sheet: Sheet) -> None:
    named = sheet.take("deepspeed")
    if named is None:
        put_none(sheet)
    else:
        put_named(sheet, named, wanted="the YAML")


def _put_tracking(sheet: Sheet) -> None:
    every = sheet.count("logging_steps")
    if every:
        sheet.put("training.log_every", every)
    mirrors = [name for name, key in (("wandb", "wandb_project"), ("mlflow", "mlflow_experiment_name"),
                                      ("tensorboard", "use_tensorboard")) if sheet.take(key)]  # fmt: skip
    if mirrors:
        sheet.put("tracking.mirrors", mirrors)
    if sheet.has("wandb_project"):
        sheet.put("tracking.project", sheet.word("wandb_project"))
    saved, kept = sheet.number("save_steps", 0), sheet.count("save_total_limit")
    if saved and saved >= 1:
        sheet.put("checkpoint.every", int(saved))
    if kept:
        sheet.put("checkpoint.keep_last", kept)


def _logs(sheet: Sheet) -> list[Path]:
    """The state of the newest checkpoint in the output folder."""
    folder = find_beside(sheet.source, Path(str(sheet.given.get("output_dir") or "./model-out")))
    return [] if folder is None else states_in(folder)


def _drop_padding_token(sheet: Sheet) -> None:
    """A token for padding alone changes nothing that is learnt."""
    tokens = sheet.given.get("special_tokens")
    if isinstance(tokens, Mapping) and set(tokens) <= {"pad_token"}:
        sheet.tell("special_tokens", "padding is left out of the loss", matters=False)
