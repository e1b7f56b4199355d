"""Who shards and steps: the engine of a public record as keys of a planner case."""

from __future__ import annotations

from functools import cache
from typing import Any

import planner
from benchmarks.field import parts
from benchmarks.field.parts import NotTranslated, Record
from planner.parsing import CHOICES, KEYS

ENGINE, FSDP2 = "engine", "fsdp2"
NONE = ("none", None, "")
# One block is gathered and reduced at a time, as FSDP does with a wrapping policy by block.
SMALL_BUCKETS = {
    "reduce_bucket_size": 16_000_000,
    "stage3_prefetch_bucket_size": 16_000_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
}


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
    said = str(record.get("precision", "")).lower()
    pure = "fp32" not in said and "mixed" not in said
    if pure and plays_fsdp2():
        name, notes = parts.optimizer(record)
        keys = {"dtype": dtype(record), ENGINE: FSDP2, "optimizer": name, "world_size": gpus}
        return keys, [*notes, "FSDP full shard stands in as FSDP2"]
    if pure and method == "full":  # ZeRO-3, which always keeps a master copy, is no counterpart
        raise Waiting(f"case key {ENGINE!r}: {FSDP2!r}")
    keys = {
        "dtype": dtype(record), "zero_stage": 3, "world_size": gpus,
        "deepspeed": {"zero_optimization": dict(SMALL_BUCKETS)},
    }  # fmt: skip
    return keys, ["FSDP full shard stands in as ZeRO-3 with small buckets (16-bit shard beside the fp32 one)"]


@cache
def plays_fsdp2() -> bool:
    """Whether the planner shards under this engine; a name that is only known would be played unsharded."""
    if FSDP2 not in CHOICES.get(ENGINE, ()):
        return False
    case = {"hf_config": planner.model_config("smollm2_135m_instruct"), "method": "full", ENGINE: FSDP2}
    alone, shared = (
        planner.predict(case | {"optimizer": "torch_adamw", "seq_len": 8, "world_size": ranks})
        for ranks in (1, 8)
    )
    return shared.peak_allocated_bytes < 0.5 * alone.peak_allocated_bytes
