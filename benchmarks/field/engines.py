"""Who shards and steps: the engine of a public record as keys of a planner case."""

from __future__ import annotations

from typing import Any

from benchmarks.field import parts
from benchmarks.field.parts import NotTranslated, Record
from planner.parsing import KEYS

ENGINE, FSDP2 = "engine", "fsdp2"
NONE = ("none", None, "")


class Waiting(Exception):
    """The planner has no key for this yet; the message names it."""


def dtype(record: Record) -> str:
    """The type of the weights."""
    said = str(record.get("precision", "")).lower()
    if "bf16" in said:
        return "bf16"
    if "fp16" in said:
        return "fp16"
    if "fp32" in said:
        return "fp32"
    raise NotTranslated(f"precision {record.get('precision')!r} is not known")


def engine(record: Record, method: str) -> tuple[dict[str, Any], list[str]]:
    """Keys that say who shards and steps."""
    stage, gpus = record.get("zero_stage"), record.get("gpus")
    if gpus is None:
        raise NotTranslated("the number of GPUs is not stated")
    if stage == "fsdp":
        return _fsdp(record, method, int(gpus))
    if isinstance(stage, int):
        return _deepspeed(record, stage, int(gpus))
    if stage == "ddp" or stage in NONE:
        if int(gpus) > 1:
            raise NotTranslated("plain data parallelism: the buckets of DDP are not modelled")
        return _plain(record)
    raise NotTranslated(f"zero_stage {stage!r} is not known")


def _plain(record: Record) -> tuple[dict[str, Any], list[str]]:
    said = str(record.get("precision", "")).lower()
    if "mixed" in said:
        raise NotTranslated("autocast over fp32 weights is not modelled")
    name, notes = parts.optimizer(record)
    if ENGINE not in KEYS:
        raise Waiting("case key 'engine': 'plain'")
    return {
        "dtype": dtype(record),
        ENGINE: "plain",
        "optimizer": name,
        "zero_stage": 0,
        "world_size": 1,
    }, notes


def _deepspeed(record: Record, stage: int, gpus: int) -> tuple[dict[str, Any], list[str]]:
    keys: dict[str, Any] = {"dtype": dtype(record), "zero_stage": stage, "world_size": gpus}
    for key in ("offload_optimizer", "offload_param"):
        if record.get(key) not in NONE:
            keys[key] = record[key]
    notes = ["DeepSpeed's settings are not stated: its defaults"]
    if stage == 0:
        name, more = parts.optimizer(record)
        return keys | {"optimizer": name}, notes + more
    return keys, notes


def _fsdp(record: Record, method: str, gpus: int) -> tuple[dict[str, Any], list[str]]:
    if record.get("offload_optimizer") not in NONE or record.get("offload_param") not in NONE:
        raise NotTranslated("FSDP with CPU offload has no counterpart")
    if method == "qlora":
        raise NotTranslated("FSDP over a 4-bit base has no counterpart: the planner refuses qlora at stage 3")
    name, notes = parts.optimizer(record)
    said = str(record.get("precision", "")).lower()
    wide = "fp32" in said or "mixed" in said
    keys: dict[str, Any] = {"dtype": dtype(record), ENGINE: FSDP2, "optimizer": name, "world_size": gpus}
    keys["fsdp"] = {"fp32_params": wide, "sync_each_batch": False}
    if parts.code_base(record) == "litgpt":  # Fabric's strategies/fsdp.py asks for use_orig_params
        keys["fsdp"]["foreach"] = True
        notes = [*notes, "Fabric leaves plain tensors to the optimizer, so it steps them all at once"]
    if wide:
        notes = [*notes, "fp32 shards, gathered and reduced in 16 bit"]
    if int(record.get("grad_accum") or 1) > 1:
        notes = [
            *notes,
            "gradients wait whole for the last micro-batch: Fabric and Trainer accumulate under no_sync",
        ]
    return keys, [*notes, "FSDP full shard stands in as FSDP2"]
