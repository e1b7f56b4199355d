"""Step 1 of DeepSpeed-Chat: flags of its `main.py` and what its code makes of them.

Read in DeepSpeedExamples of March 2026: `training/step1_supervised_finetuning/main.py` and `dschat/utils`
(`ds_utils.py`, `module/lora.py`, `utils.py`, `data/data_utils.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers import hf_arguments as hf
from llmsys_exp.importers.data_sources import put_rows, put_several, start_data
from llmsys_exp.importers.ds_config import put_ds_config
from llmsys_exp.importers.hf_keys import REASONS as TRAINER
from llmsys_exp.importers.models import put_model
from llmsys_exp.importers.sheet import Sheet
from planner.architecture.families import architecture_of
from planner.errors import CaseError
from planner.network.modules import linear_shapes

NAME = "deepspeed_chat"
OWN = ("zero_stage", "data_split", "lora_dim", "only_optimize_lora", "sft_only_data_path", "lora_module_name")
"""Flags by which its command line is known."""
_NOT_LINEAR = ("gpt2",)
"""Families whose matrices are transformers' Conv1D, which the script's LoRA passes over."""
_PREFIXES = {"opt": "model.decoder.layers.0.", "gpt2": "transformer.h.0.", "gpt_neox": "gpt_neox.layers.0.",
             "falcon": "transformer.h.0.", "bloom": "transformer.h.0."}  # fmt: skip
_ATTENTION = "self_attn."
REASONS = {
    **TRAINER,
    "deepspeed": "",
    "enable_tensorboard": "",
    "tensorboard_path": "",
    "data_output_path": "",
    "print_loss": "",
    "add_eot_token": "the tokenizer's own end token ends an example",
    "eot_token": "",
    "compute_fp32_loss": "the loss is computed in fp32 anyway; logits are not kept in fp32",
    "dropout": "dropout is that of the model's own config.json",
    "deepspeed_config": "the script writes its own configuration",
}


def check_step(flags: Mapping[str, Any], where: str) -> None:
    """Refuse the steps that train something else.

    Raises:
        UserError: for steps 2 and 3.
    """
    if "actor_model_name_or_path" in flags:
        what = "step 3 trains by PPO"
    elif "num_padding_at_beginning" in flags or "step2_reward" in where:
        what = "step 2 trains a reward model"
    elif "step2_dpo" in where or "beta" in flags:
        what = "step 2 trains by DPO"
    else:
        return
    raise UserError(
        f"DeepSpeed-Chat's {what}", where=where, do="llmsys has its step 1, supervised fine-tuning"
    )


def put_flags(sheet: Sheet) -> None:
    """Map the flags of step 1.

    Raises:
        UserError: when no model is named.
    """
    name = sheet.word("model_name_or_path")
    if name is None:
        raise UserError("The command names no model", where=str(sheet.source), do="Add --model_name_or_path")
    put_model(sheet, name, key="model_name_or_path")
    hf.put_batch(sheet, "per_device_train_batch_size", "gradient_accumulation_steps", default_micro=16)
    sheet.put("training.epochs", sheet.number("num_train_epochs", 1))
    sheet.put("seed", sheet.count("seed", 1234))
    sheet.put("training.dtype", sheet.word("dtype", "fp16"))
    sheet.put("training.gradient_checkpointing", sheet.flag("gradient_checkpointing"))
    _put_rate(sheet)
    _put_deepspeed(sheet)
    _put_method(sheet)
    _put_data(sheet)
    sheet.rest(REASONS, OWN, tool="DeepSpeed-Chat")


def _put_rate(sheet: Sheet) -> None:
    sheet.put("training.learning_rate", sheet.number("learning_rate", 1e-3))
    decay = sheet.number("weight_decay", 0.0)
    sheet.put("training.weight_decay", decay)
    if decay:
        sheet.note("weight_decay: the script leaves biases and norms out; llmsys decays them as well")
    sheet.put("training.adam_beta1", 0.9)
    sheet.put("training.adam_beta2", 0.95)
    warmup = sheet.count("num_warmup_steps", 0)
    hf.put_schedule(sheet, sheet.word("lr_scheduler_type", "cosine") or "cosine")
    if warmup:
        sheet.put("training.warmup_steps", warmup)
        sheet.note("warm-up: transformers takes its first step at a rate of 0, llmsys one step further on")


def _put_deepspeed(sheet: Sheet) -> None:
    """What `get_train_ds_config` writes. One flag asks for both offloads."""
    stage, offload = sheet.count("zero_stage", 0), sheet.flag("offload")
    dtype = str(sheet.settings["training.dtype"])
    section: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "stage3_param_persistence_threshold": 1e4,
        "stage3_max_live_parameters": 3e7,
        "stage3_prefetch_bucket_size": 3e7,
    }
    if offload:
        section |= {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    scaling = {"loss_scale_window": 100} if dtype == "fp16" else {}
    content = {"zero_optimization": section, dtype: {"enabled": True, **scaling}, "gradient_clipping": 1.0}
    put_ds_config(sheet, content, source=sheet.source)
    sheet.put("training.optimizer", "deepspeed_adamw")  # FusedAdam, with --offload DeepSpeedCPUAdam
    if offload and stage == 0:
        sheet.tell("offload", "DeepSpeed offloads nothing at stage 0", "Set zero.stage=2", value=True)
        sheet.put("offload.optimizer", "none")


def _put_method(sheet: Sheet) -> None:
    rank, scope = sheet.whole("lora_dim", 0), sheet.word("lora_module_name", "decoder.layers.") or ""
    rate, alone = sheet.number("lora_learning_rate", 5e-4), sheet.flag("only_optimize_lora")
    if rank == 0:
        sheet.choose("method", "full")
        return
    targets = targets_of(sheet.shape, scope)
    if targets == []:
        _no_target(sheet, scope, alone)
        return
    sheet.choose("method", "lora")
    sheet.put("method.lora.r", rank)
    sheet.put("method.lora.alpha", 1)
    sheet.note(f"LoRA: the script scales by 1 / r, so alpha is 1 for r={rank}")
    if targets is None:
        sheet.tell("lora_module_name", "the model's modules are not known here; all linear ones stand in",
                   "Set method.lora.targets", value=scope)  # fmt: skip
    sheet.put("method.lora.targets", "all-linear" if targets is None or targets == "all-linear" else targets)
    _put_rates_of_both(sheet, rate, alone=alone)


def _no_target(sheet: Sheet, scope: str, alone: bool) -> None:
    """A filter that fits no module leaves the model without adapters."""
    if alone:
        raise UserError(
            f"--lora_module_name {scope} fits no module of this model, and only adapters are to be trained",
            where=str(sheet.source),
            why="The script would end without anything to optimise",
            do="Name a part of its modules' names, such as layers.",
        )
    sheet.choose("method", "full")
    sheet.tell(
        "lora_module_name",
        "it fits no nn.Linear of this model, so the script adds no adapters and trains every weight",
        "If adapters are meant: method=lora",
        value=scope,
    )


def _put_rates_of_both(sheet: Sheet, rate: float | None, *, alone: bool) -> None:
    """Adapters have a rate of their own; the rest learns too unless `--only_optimize_lora` is given."""
    rest = sheet.settings["training.learning_rate"]
    sheet.put("training.learning_rate", rate)
    if alone:
        sheet.note(
            f"learning_rate: {rest:g} applies to nothing here; adapters learn at --lora_learning_rate, "
            f"{rate:g}"
        )
        return
    untied = sheet.shape is not None and not _tied(sheet.shape)
    if untied:
        sheet.put("method.lora.modules_to_save", ["embed_tokens", "lm_head"])
    what = "norms and biases stay frozen" if untied else "embedding, norms and biases stay frozen"
    sheet.tell(
        "only_optimize_lora",
        f"not given, so all but the adapted matrices learns as well, at {rest:g}; here {what}, and one "
        "rate holds for all",
        "To train the adapted matrices too: method.lora.modules_to_save=[] method.lora.train_base=true",
        value=False,
    )


def _tied(shape: Mapping[str, Any]) -> bool:
    try:
        return architecture_of(shape).tied
    except CaseError:
        return True


def targets_of(shape: Mapping[str, Any] | None, scope: str) -> str | list[str] | None:
    """Return which linear layers of a block have names that hold `scope`; None where the names are not known.

    >>> targets_of({"model_type": "gpt2"}, "decoder.layers.")
    []
    """
    if shape is None:
        return None
    family = str(shape.get("model_type"))
    if family in _NOT_LINEAR:
        return []
    prefix = _PREFIXES.get(family, "model.layers.0.")
    if scope in prefix.replace(".0.", ".") or scope in prefix:
        return "all-linear"
    try:
        names = list(linear_shapes(architecture_of(shape)))
    except CaseError:
        return None
    return [name for name in names if scope in f"{prefix}{_ATTENTION if 'proj' in name else ''}{name}"]


def _put_data(sheet: Sheet) -> None:
    names = _several(sheet, "data_path") or ["Dahoas/rm-static"]
    extra = _several(sheet, "sft_only_data_path")
    start_data(sheet, [*names, *extra])
    if len(names) + len(extra) > 1:
        put_several(sheet, [*names, *extra], key="data_path")
    else:
        put_rows(sheet, names[0], key="data_path")
    sheet.put("data.max_length", sheet.count("max_seq_len", 512))
    sheet.put("data.train_on_prompt", True)
    sheet.note(
        "loss: the script learns the prompt's tokens too (data.train_on_prompt=true), and pads every "
        "row to max_seq_len"
    )
    split = sheet.word("data_split", "2,4,4") or ""
    parts = [float(part) for part in split.split(",") if part.replace(".", "", 1).isdigit()]
    share = parts[0] / sum(parts) if len(parts) == 3 and sum(parts) else 1.0
    if share < 1:
        sheet.tell("data_split", f"step 1 learns from {share:.0%} of the rows, drawn by the "
            "seed", "Give a file with that part",
                   value=split)  # fmt: skip


def _several(sheet: Sheet, key: str) -> list[str]:
    value = sheet.take(key)
    return (
        []
        if value in (None, True)
        else [str(one) for one in value]
        if isinstance(value, list)
        else [str(value)]
    )
