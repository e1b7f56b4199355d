"""The YAML that `accelerate launch --config_file` names: ranks, precision, and DeepSpeed or FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmsys_exp.importers.imported import Imported, Unmapped

NO_FSDP = "FSDP is not run"
USE_STAGE3 = "Set zero.stage=3, which shards as FULL_SHARD does"


def with_accelerate(result: Imported, given: Mapping[str, Any]) -> Imported:
    """Put what accelerate's file says over what the training arguments said."""
    groups, settings = dict(result.groups), dict(result.settings)
    unmapped, notes = list(result.unmapped), list(result.notes)
    _put_ranks(settings, given, notes)
    if given.get("mixed_precision") in ("bf16", "fp16") and settings.get("training.dtype", "auto") == "auto":
        settings["training.dtype"] = given["mixed_precision"]
    kind = str(given.get("distributed_type", "")).upper()
    section = given.get("deepspeed_config")
    if kind == "FSDP":
        unmapped.append(Unmapped("distributed_type", kind, NO_FSDP, USE_STAGE3))
    elif isinstance(section, Mapping):
        _put_deepspeed(groups, settings, section, unmapped)
    return replace(result, groups=groups, settings=settings, unmapped=tuple(unmapped), notes=tuple(notes))


def _put_ranks(settings: dict[str, Any], given: Mapping[str, Any], notes: list[str]) -> None:
    ranks, nodes = given.get("num_processes"), given.get("num_machines") or 1
    if not isinstance(ranks, int) or not isinstance(nodes, int) or isinstance(ranks, bool) or ranks < 1:
        return
    settings["hardware.gpus_per_node"] = max(1, ranks // max(1, nodes))
    if nodes > 1:
        settings["hardware.nodes"] = nodes
    notes.append(f"GPUs: {ranks}, from accelerate's file")


def _put_deepspeed(
    groups: dict[str, str], settings: dict[str, Any], section: Mapping[str, Any], unmapped: list[Unmapped]
) -> None:
    stage = section.get("zero_stage")
    if stage in (0, 1, 2, 3) and not isinstance(stage, bool):
        groups["zero"] = f"stage{stage}"
    groups.pop("offload", None)
    for key, setting in (
        ("offload_optimizer_device", "offload.optimizer"),
        ("offload_param_device", "offload.param"),
    ):
        settings[setting] = str(section.get(key) or "none")
    known = ("zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps")
    for key, value in section.items():
        if key not in (*known, "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"):
            unmapped.append(Unmapped(f"deepspeed_config.{key}", value, "read from the ds_config.json only"))
