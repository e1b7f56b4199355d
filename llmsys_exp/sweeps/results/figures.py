"""The figures of one run for the table of its sweep: forecast, measured memory, losses, scores, speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmsys_exp.report.infer_rows import inference_figures
from llmsys_exp.runs.files import read_jsonl
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.told import Told, group, part
from planner.units import GIB

MEMORY = (
    "gpu_planned_gib", "host_planned_gib", "disk_planned_gib",
    "peak_planned_gib", "peak_measured_gib", "peak_off", "host_measured_gib", "host_off",
)  # fmt: skip
"""Sizes of one rank's device (main memory without a GPU), of a node's main memory and of the disk; `_off` is
the share by which the measured value exceeds the planned one. `peak_planned_gib` is what the measured peak
answers to."""
TRAINING = (
    "loss_first", "loss_last", "heldout_loss_before", "heldout_loss", "heldout_loss_best", "score_name",
    "score_before", "score", "steps", "train_tokens", "train_seconds", "tokens_per_s", "planned_tokens_per_s",
    "mfu",
)  # fmt: skip
INFERENCE = (
    "out_tokens_per_s", "in_tokens_per_s", "latency_p50_s", "latency_p99_s", "start_s", "answer_seconds",
    "cache_hit_rate", "retractions", "kv_planned", "kv_engine", "prompts", "new_tokens",
)  # fmt: skip
FIGURES = (*MEMORY, *TRAINING, *INFERENCE)
HOST = "main memory of a node"
NAMES = {
    "tokens_per_s": "out_tokens_per_s",
    "input_tokens_per_s": "in_tokens_per_s",
    "seconds": "answer_seconds",
}
"""Figure of an inference run -> column."""


def run_figures(told: Told) -> dict[str, Any]:
    """Return what a run tells by the names of `FIGURES`; None where it tells nothing."""
    results = told.group("results")
    found: dict[str, Any] = {
        **part(lambda: _memory(told.group("forecast"), told.group("measured")), {}),
        **part(lambda: _training(told.paths, group(results, "train"), told.group("metrics")), {}),
        "planned_tokens_per_s": group(told.job, "plan", "speed").get("tokens_per_s"),
        **part(lambda: _inference(group(results, "infer")), {}),
    }
    return {name: clean(found.get(name)) for name in FIGURES}


def clean(value: Any) -> Any:
    """Return a number or text for a cell; None for what has no place in one, as NaN and groups."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (int, str)) else None


def _memory(forecast: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for row in measured.get("rows") or () if isinstance(row, dict)]
    peak = next((row for row in rows if row.get("name") != HOST), {})
    host = next((row for row in rows if row.get("name") == HOST), {})
    disk = group(forecast, "disk")
    return {
        "gpu_planned_gib": forecast.get("required_gib"),
        "host_planned_gib": forecast.get("host_peak_gib"),
        "disk_planned_gib": round(sum(map(_number, disk.values())), 4) if disk else None,
        "peak_planned_gib": _gib(peak.get("planned_bytes")),
        "peak_measured_gib": _gib(peak.get("measured_bytes", measured.get("peak_bytes"))),
        "peak_off": _off(peak),
        "host_measured_gib": _gib(host.get("measured_bytes")),
        "host_off": _off(host),
    }


def _training(paths: RunPaths, train: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    evaluation = metrics or group(train, "evaluation")
    before, after = group(evaluation, "before"), group(evaluation, "after")
    loss = group(train, "loss") or _losses(paths)
    speed = group(train, "speed")
    return {
        "loss_first": loss.get("first"),
        "loss_last": loss.get("last"),
        "heldout_loss_before": before.get("loss"),
        "heldout_loss": after.get("loss"),
        "heldout_loss_best": group(train, "best").get("loss"),
        "score_name": after.get("score_name"),
        "score_before": before.get("score"),
        "score": after.get("score"),
        "steps": train.get("steps"),
        "train_tokens": train.get("tokens"),
        "train_seconds": train.get("seconds"),
        "tokens_per_s": speed.get("tokens_per_s", train.get("tokens_per_s")),
        "mfu": speed.get("mfu"),
    }


def _losses(paths: RunPaths) -> dict[str, Any]:
    """Losses of a run that has no result: as far as it came."""
    losses = [row["train/loss"] for row in read_jsonl(paths.metrics) if "train/loss" in row]
    return {"first": losses[0], "last": losses[-1]} if losses else {}


def _inference(infer: Mapping[str, Any]) -> dict[str, Any]:
    if not infer:
        return {}
    return {NAMES.get(name, name): value for name, value in inference_figures(infer).items()}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _gib(size_bytes: Any) -> float | None:
    return round(size_bytes / GIB, 4) if isinstance(size_bytes, (int, float)) else None


def _off(row: Mapping[str, Any]) -> float | None:
    planned, measured = _number(row.get("planned_bytes")), _number(row.get("measured_bytes"))
    return round(measured / planned - 1, 4) if planned and measured else None
