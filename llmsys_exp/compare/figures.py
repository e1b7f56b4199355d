"""Figures of runs beside each other: losses and scores, memory planned and measured, speed, answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.compare.subjects import Subject
from llmsys_exp.report.pages.layout import shown
from llmsys_exp.runs.told import group
from llmsys_exp.sweeps.results.best import is_number
from llmsys_exp.sweeps.results.figures import run_figures

LESS, MORE, NEITHER = "less", "more", ""
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("Results", "heldout_loss_before", "held-out loss before", NEITHER),
    ("Results", "heldout_loss", "held-out loss", LESS),
    ("Results", "heldout_loss_best", "lowest held-out loss", LESS),
    ("Results", "score_before", "score before", NEITHER),
    ("Results", "score", "score", MORE),
    ("Results", "loss_first", "training loss, first", NEITHER),
    ("Results", "loss_last", "training loss, last", LESS),
    ("Results", "answer_score", "score of the answers", MORE),
    ("Results", "steps", "optimizer steps", NEITHER),
    ("Results", "train_tokens", "tokens trained on", NEITHER),
    ("Results", "prompts", "prompts", NEITHER),
    ("Results", "new_tokens", "new tokens", NEITHER),
    ("Memory, GiB", "peak_planned_gib", "peak of a rank, planned", NEITHER),
    ("Memory, GiB", "peak_measured_gib", "peak of a rank, measured", LESS),
    ("Memory, GiB", "peak_off", "measured beyond plan, %", NEITHER),
    ("Memory, GiB", "gpu_planned_gib", "needed on the device, planned", NEITHER),
    ("Memory, GiB", "host_planned_gib", "main memory, planned", NEITHER),
    ("Memory, GiB", "host_measured_gib", "main memory, measured", LESS),
    ("Memory, GiB", "disk_planned_gib", "disk, planned", NEITHER),
    ("Speed", "tokens_per_s", "training tokens/s", MORE),
    ("Speed", "planned_tokens_per_s", "training tokens/s, estimated", NEITHER),
    ("Speed", "mfu", "MFU, %", MORE),
    ("Speed", "out_tokens_per_s", "new tokens/s", MORE),
    ("Speed", "in_tokens_per_s", "prompt tokens/s", MORE),
    ("Speed", "latency_p50_s", "latency p50, s", LESS),
    ("Speed", "latency_p99_s", "latency p99, s", LESS),
    ("Speed", "start_s", "start of the engine, s", LESS),
    ("Speed", "cache_hit_rate", "prefix cache hits, %", NEITHER),
    ("Speed", "retractions", "requests put back", LESS),
    ("Speed", "train_seconds", "training, s", LESS),
    ("Speed", "seconds", "whole run, s", LESS),
    ("Speed", "energy_wh", "energy of the GPUs, Wh", LESS),
)
"""Heading, figure, what it is called, which of two is better."""
_PERCENT = ("peak_off", "mfu", "cache_hit_rate")


@dataclass(frozen=True)
class FigureRow:
    """One figure that at least one run has."""

    title: str
    key: str
    name: str
    values: tuple[float | None, ...]
    best: int | None
    """Place of the run that is best in it; None where they are equal or no value is better."""

    @property
    def difference(self) -> str:
        """How far the last run that has it is from the first: absolute, and in per cent."""
        first = self.values[0]
        last = next((one for one in reversed(self.values[1:]) if one is not None), None)
        if first is None or last is None:
            return ""
        if first == last:
            return "same"
        said = f"{'+' if last > first else '-'}{shown(abs(last - first))}"
        if not first or self.key in _PERCENT:
            return said
        percent = 100 * (last / first - 1)
        return f"{said} ({percent:+.0f} %)" if abs(percent) >= 10 else f"{said} ({percent:+.2g} %)"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        first = self.values[0]
        gaps = [None if None in (first, one) else one - first for one in self.values]  # type: ignore[operator]
        return {
            "key": self.key,
            "name": self.name,
            "values": self.values,
            "differences": gaps,
            "best": self.best,
        }


def figure_rows(subjects: Sequence[Subject]) -> list[FigureRow]:
    """Return the figures that any of the runs has, in the order of headings."""
    tables = [_figures(one) for one in subjects]
    names = {str(table["score_name"]) for table in tables if table.get("score_name")}
    rows: list[FigureRow] = []
    for title, key, name, better in _ROWS:
        values = tuple(_value(table.get(key), key) for table in tables)
        if any(one is not None for one in values):
            said = name.replace("score", names.copy().pop()) if "score" in key and len(names) == 1 else name
            rows.append(FigureRow(title, key, said, values, _best(values, better)))
    return rows


def _figures(subject: Subject) -> dict[str, Any]:
    record = subject.told.record
    infer = group(record, "results", "infer")
    own = {
        "seconds": group(record, "timing_s").get("total"),
        "energy_wh": record["energy_wh"],
        "answer_score": infer.get("score"),
    }
    return {**run_figures(subject.told), **own}


def _value(value: Any, key: str) -> float | None:
    if not is_number(value):
        return None
    return 100 * value if key in _PERCENT else value


def _best(values: Sequence[float | None], better: str) -> int | None:
    known = {value: place for place, value in reversed(list(enumerate(values))) if value is not None}
    if not better or len({shown(value) for value in known}) < 2:
        return None
    return known[(max if better == MORE else min)(known)]
