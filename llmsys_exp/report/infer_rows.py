"""A sweep of inference runs as rows: plain values that its table, files, plots and words are made from.

A row has `point`, `overrides` (key -> value as typed), `state`, `folder`, `error` and the names of `FIGURES`,
None where they are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.report.plan_rows import axes_of, first_line, override_values

if TYPE_CHECKING:
    from llmsys_exp.jobs.infer_sweep import SweepPoint

Row = Mapping[str, Any]

FIGURES = (
    "seconds",
    "start_s",
    "input_tokens_per_s",
    "tokens_per_s",
    "latency_p50_s",
    "latency_p99_s",
    "cache_hit_rate",
    "retractions",
    "kv_planned",
    "kv_engine",
    "prompts",
    "prompt_tokens",
    "new_tokens",
    "stopped",
    "aborted",
    "batches",
    "at_a_time",
)
"""Answering time, time of the engine's start (0: it was running), tokens in and out a second, and so on."""


def sweep_row(point: SweepPoint) -> dict[str, Any]:
    """Return the row of one point."""
    infer = point.result
    return {
        "point": point.number,
        "overrides": override_values(point.overrides),
        "state": point.state,
        "folder": point.manifest.get("folder"),
        "error": None if point.error is None else first_line(point.error),
        **dict.fromkeys(FIGURES),
        **(inference_figures(infer) if infer else {}),
    }


def swept(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the settings that differ, each with its values: numbers in order, then words."""
    return {key: sorted(values, key=_order) for key, values in axes_of(rows).items()}


def lines_of(rows: Sequence[Row], key: str) -> list[list[Row]]:
    """Return complete rows that differ in one setting alone, a list for each combination of the others."""
    others = [name for name in swept(rows) if name != key]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["state"] == "complete" and key in row["overrides"]:
            groups.setdefault(tuple(row["overrides"].get(name, "") for name in others), []).append(row)
    found = [sorted(group, key=lambda row: _order(row["overrides"][key])) for group in groups.values()]
    return [group for group in found if len({row["overrides"][key] for row in group}) > 1]


def _order(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def inference_figures(infer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an inference run by the names of `FIGURES`."""
    times, latency = infer.get("time_s") or {}, infer.get("latency_s") or {}
    kv = infer.get("kv_tokens") or {}
    seconds, load = infer.get("seconds"), times.get("load") or 0.0
    tokens_in = infer.get("prompt_tokens")
    return {
        "seconds": seconds,
        "start_s": load + (times.get("warm_up") or 0.0) if load else 0.0,
        "input_tokens_per_s": tokens_in / seconds if seconds and tokens_in is not None else None,
        "latency_p50_s": latency.get("p50"),
        "latency_p99_s": latency.get("p99"),
        "kv_planned": kv.get("planned"),
        "kv_engine": kv.get("engine"),
        "at_a_time": _at_a_time(infer),
        **{
            name: infer.get(name)
            for name in (
                "tokens_per_s",
                "cache_hit_rate",
                "retractions",
                "prompts",
                "prompt_tokens",
                "new_tokens",
                "stopped",
                "aborted",
                "batches",
            )
        },
    }


def _at_a_time(infer: Mapping[str, Any]) -> int | None:
    """Most requests that may have been answered together: the batch, the engine's own limit, the prompts."""
    prompts, size = infer.get("prompts"), (infer.get("settings") or {}).get("batch_size")
    if not prompts:
        return None
    settings = (infer.get("started") or {}).get("settings") or {}
    limit = settings.get("max_running_requests_per_replica") or settings.get("max_running_requests")
    if _is_count(limit):
        limit *= settings.get("dp_size") or 1  # SGLang's own names are of one replica
    return min([prompts, *(one for one in (size, limit) if _is_count(one))])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
