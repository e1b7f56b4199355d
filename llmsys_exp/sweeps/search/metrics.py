"""What a search can go by: figures of a finished run, and curves of one that is at work."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from llmsys_exp.runs.migrate import find_manifest
from llmsys_exp.runs.paths import RunPaths
from planner.units import GIB

MINIMIZE, MAXIMIZE = "minimize", "maximize"
DIRECTIONS = (MINIMIZE, MAXIMIZE)
EVALUATED, TRAINED = "eval/loss", "train/loss"
NO_NUMBER = "nan"
Value: TypeAlias = "float | str | None"
"""A figure; `nan` where it is no number, None where the run has none."""


@dataclass(frozen=True)
class Metric:
    """One figure.

    Attributes:
        paths: where it is in the manifest of a run; the first that is there counts.
        direction: what one usually wants.
        curve: its name in metrics.jsonl, where runs tell it as they go.
        unit: what it is divided by.
    """

    paths: tuple[tuple[str, ...], ...]
    direction: str
    curve: str | None = None
    unit: int = 1


METRICS: Mapping[str, Metric] = {
    "evaluation.loss": Metric((("metrics", "after", "loss"),), MINIMIZE, EVALUATED),
    "best.loss": Metric((("results", "train", "best", "loss"),), MINIMIZE, EVALUATED),
    "loss": Metric((("results", "train", "loss", "last"),), MINIMIZE, TRAINED),
    "score": Metric((("results", "infer", "score"), ("metrics", "after", "score")), MAXIMIZE),
    "tokens_per_s": Metric(
        (("results", "train", "tokens_per_s"), ("results", "infer", "tokens_per_s")), MAXIMIZE
    ),
    "images_per_s": Metric((("results", "train", "images_per_s"),), MAXIMIZE),
    "peak_gib": Metric((("measured", "peak_bytes"),), MINIMIZE, unit=GIB),
    "seconds": Metric((("timing_s", "total"),), MINIMIZE),
}


def figures_of(folder: Path, metrics: tuple[str, ...]) -> list[Value]:
    """Return figures of a finished run."""
    manifest = find_manifest(RunPaths(folder).manifest)
    return [_figure(manifest, METRICS[metric]) for metric in metrics]


def values_told(search: Mapping[str, Any] | None, folder: str | None) -> dict[str, Any]:
    """Return what the ledger is to tell of a finished run: its `values`, where a search goes by them."""
    if search is None or folder is None:
        return {}
    given = search["objective"]
    listed = given if isinstance(given, list) else [given]
    metrics = tuple(one if isinstance(one, str) else one["metric"] for one in listed)
    return {"values": figures_of(Path(folder), metrics)}


def figures_there(folder: Path) -> list[str]:
    """Return the names of the metrics that a finished run has."""
    return [
        metric
        for metric, found in zip(METRICS, figures_of(folder, tuple(METRICS)), strict=True)
        if found is not None
    ]


def curve_of(folder: Path) -> dict[str, dict[int, float]]:
    """Return the losses that a run has told so far, by name and step; the last line may be half written."""
    curves: dict[str, dict[int, float]] = {EVALUATED: {}, TRAINED: {}}
    try:
        text = RunPaths(folder).metrics.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return curves
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        for name, curve in curves.items():
            step, value = entry.get("step"), entry.get(name)
            if isinstance(step, int) and step > 0 and isinstance(value, (int, float)):
                curve[step] = float(value)
    return curves


def _figure(manifest: Any, metric: Metric) -> Value:
    for path in metric.paths:
        found = manifest
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return found / metric.unit if math.isfinite(found) else NO_NUMBER
    return None
