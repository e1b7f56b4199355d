"""A DeepSpeed configuration (`ds_config.json`): every `auto` is resolved or explained.

What a key of `zero_optimization` may be, and what stands for its `auto`, the planner knows
(`planner.parsing_deepspeed`); names are those of DeepSpeed 0.19.8 `runtime/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers.ds_offload import put_offload
from llmsys_exp.importers.ds_sections import (
    agree,
    put_activation_checkpointing,
    put_optimizer,
    put_precision,
    put_scheduler,
)
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.sheet import Sheet
from planner.errors import CaseError
from planner.parsing_deepspeed import SHORT_NAMES, zero_settings

NAME = "ds_config"
AUTO = "auto"
DEFAULT_BUCKET = 500_000_000
FORMULAS = {
    "reduce_bucket_size": "hidden_size squared",
    "stage3_prefetch_bucket_size": "0.9 x hidden_size squared",
    "stage3_param_persistence_threshold": "10 x hidden_size",
}
"""What transformers' Trainer puts in place of `auto`."""
OURS = (
    "overlap_comm", "contiguous_gradients", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size",
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
)  # fmt: skip
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
REASONS = {
    "steps_per_print": "",
    "wall_clock_breakdown": "",
    "memory_breakdown": "",
    "dump_state": "",
    "_comment": "",
    "tensorboard": "",
    "wandb": "",
    "csv_monitor": "",
    "monitor_config": "",
    "comms_logger": "",
    "comms_config": "",
    "flops_profiler": "",
    "zero_allow_untested_optimizer": "",
    "zero_force_ds_cpu_optimizer": "",
    "hybrid_engine": "",
    "checkpoint": "",
    "nebula": "",
    "aio": "llmsys writes its own figures for NVMe",
    "prescale_gradients": "gradients are averaged after the reduction",
    "gradient_predivide_factor": "gradients are averaged after the reduction",
    "sparse_gradients": "gradients are dense",
    "communication_data_type": "gradients travel in the compute type",
    "seq_parallel_communication_data_type": "sequences are not split",
    "amp": "apex is not used  Set training.dtype=bf16",
    "torch_autocast": "torch.autocast is not used below DeepSpeed",
    "autotuning": "settings are chosen by the planner  Set micro_batch, stage and offload to auto",
    "elasticity": "a run keeps its ranks",
    "curriculum_learning": "rows come in one shuffled order",
    "data_efficiency": "rows come in one shuffled order",
    "compression_training": "weights are not compressed",
    "sparse_attention": "attention is dense",
    "pipeline": "training is data-parallel only",
    "tensor_parallel": "training is data-parallel only",
    "sequence_parallel_size": "training is data-parallel only",
    "compile": "models are not compiled",
    "progressive_layer_drop": "no layers are dropped",
    "quantize_training": "training is not quantised",
    "disable_allgather": "",
    "use_data_before_expert_parallel_": "",
}


def read(path: Path, content: Mapping[str, Any], sheet: Sheet) -> Imported:
    """Map a file that stands alone."""
    alone = sheet
    alone.note(
        "a ds_config.json says nothing of model, data, length or method: add model=NAME method=NAME "
        "data=NAME, or llmsys's"
        " defaults hold"
    )
    put_ds_config(alone, content, source=path)
    return alone.done(NAME)


def put_ds_config(sheet: Sheet, content: Mapping[str, Any], *, source: Path) -> None:
    """Map a DeepSpeed configuration onto a sheet that may hold a trainer's arguments already."""
    own = Sheet(content, source, model=sheet.shape)
    own.settings, own.groups, own.notes, own.unmapped = (
        sheet.settings,
        sheet.groups,
        sheet.notes,
        sheet.unmapped,
    )
    _put_batch(own)
    _put_clipping(own)
    put_precision(own)
    put_optimizer(own)
    put_scheduler(own)
    put_activation_checkpointing(own)
    _put_zero(own)
    own.rest(REASONS, BATCH, tool="DeepSpeed")


def _put_batch(sheet: Sheet) -> None:
    """`train_batch_size` must be micro-batch x accumulation x ranks; all three together tell the ranks."""
    numbers = {key: None if sheet.take(key, AUTO) == AUTO else sheet.count(key) for key in BATCH}
    total, micro, accumulation = (numbers[key] for key in BATCH)
    for key, setting in ((BATCH[1], "training.micro_batch"), (BATCH[2], "training.grad_accum")):
        if numbers[key] is not None:
            agree(sheet, key, setting, numbers[key])
            sheet.put(setting, numbers[key])
        elif sheet.given.get(key) == AUTO:
            held = sheet.settings.get(setting, AUTO)
            sheet.note(f"{key}=auto: {_from_arguments(held, setting)}")
    if sheet.given.get(BATCH[0]) == AUTO:
        sheet.note("train_batch_size=auto: micro-batch x accumulation x GPUs")
    if total is None:
        return
    micro = micro or _number(sheet.settings.get("training.micro_batch"))
    accumulation = accumulation or _number(sheet.settings.get("training.grad_accum"))
    _put_ranks(sheet, total, micro, accumulation)


def _put_ranks(sheet: Sheet, total: int, micro: int | None, accumulation: int | None) -> None:
    sheet.put("training.global_batch", total)
    if micro is None or accumulation is None:
        return
    if total % (micro * accumulation):
        raise UserError(
            f"train_batch_size is {total}, no multiple of {micro} x {accumulation}",
            where=str(sheet.source),
            why="It must be micro-batch x accumulation x GPUs",
            do="Mend one of the three",
        )
    ranks = total // (micro * accumulation)
    sheet.put("hardware.gpus_per_node", ranks)
    sheet.note(
        f"GPUs: {total} / ({micro} x {accumulation}) = {ranks}, from the batch sizes; taken as one machine"
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _from_arguments(held: Any, setting: str) -> str:
    if held == AUTO:
        return f"comes from the trainer's arguments, which this file does not hold; {setting} stays auto"
    return f"{held}, from the trainer's arguments"


def _put_clipping(sheet: Sheet) -> None:
    setting = "training.gradient_clipping"
    held = sheet.settings.get(setting, 0.0)
    if not sheet.has("gradient_clipping") and held:
        sheet.note(
            f"gradient_clipping: not in the ds_config, so DeepSpeed clips nothing; max_grad_norm {held:g} "
            "does not reach it"
        )
    if sheet.take("gradient_clipping", 0.0) == AUTO:
        held = sheet.settings.get(setting, 1.0)
        sheet.note(f"gradient_clipping=auto: {held:g}, the trainer's max_grad_norm")
        sheet.put(setting, held)
        return
    value = sheet.number("gradient_clipping", 0.0)
    if sheet.has("gradient_clipping"):
        agree(sheet, "gradient_clipping", setting, value)
    sheet.put(setting, value)


def _put_zero(sheet: Sheet) -> None:
    given = sheet.take("zero_optimization", {})
    section: dict[str, Any] = (
        {"stage": 1} if given is True else dict(given) if isinstance(given, Mapping) else {}
    )
    if given not in (True, False) and not isinstance(given, Mapping):
        raise UserError(f"zero_optimization is {given!r}", where=str(sheet.source), do="It must be a mapping")
    stage = section.pop("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise UserError(
            f"zero_optimization.stage is {stage!r}", where=str(sheet.source), do="It must be 0, 1, 2 or 3"
        )
    sheet.choose("zero", f"stage{stage}")
    put_offload(sheet, section, stage)
    given_counts = {SHORT_NAMES.get(key, key) for key in section}
    for key, value in section.items():
        _put_zero_key(sheet, key, value)
    if stage > 0 and "reduce_bucket_size" not in given_counts:
        sheet.put("zero.reduce_bucket_size", DEFAULT_BUCKET)
    if stage == 3 and "overlap_comm" not in section:
        sheet.put("zero.overlap_comm", True)  # DeepSpeed's own default at stage 3


def _put_zero_key(sheet: Sheet, key: str, value: Any) -> None:
    """Ask the planner what a key means; what it does not know or model is told with its own words."""
    name, where = SHORT_NAMES.get(key, key), f"zero_optimization.{key}"
    if value == AUTO and name in FORMULAS and sheet.shape is None:
        sheet.note(
            f"{where}=auto: {FORMULAS[name]}; the model is not known here, so llmsys's own value holds"
        )
        return
    try:
        settings = zero_settings(
            {"deepspeed": {"zero_optimization": {key: value}}, "hf_config": sheet.shape or {}}
        )
    except CaseError as error:
        why = error.problems[0].replace("deepspeed.zero_optimization.", "zero_optimization.")
        sheet.tell(where, why, value=value)
        return
    if name not in OURS:
        sheet.tell(where, "moves no memory that counts, and is left to DeepSpeed", value=value, matters=False)
        return
    found = getattr(settings, name)
    if value == AUTO:
        sheet.note(f"{where}=auto: {FORMULAS[name]} = {found:,}, as transformers' Trainer puts it")
    if found is not None:
        sheet.put(f"zero.{name}", found)
