"""Forecasts and bands of the smallest surviving limit beside the limits under which runs failed and survived.

python benchmarks/residuals.py --boundaries
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

import planner
from benchmarks.residuals import placed_required_gib, read_lines
from planner.tables import DATA
from planner.units import GIB

Runs = list[tuple[float | None, dict[str, Any]]]


def boundaries(*, both_sides: bool = False) -> pd.DataFrame:
    """One line a case that was run under limits.

    Args:
        both_sides: only cases of which one run failed and one survived.
    """
    cases: dict[str, Runs] = {}
    for row in read_lines(DATA / "measured/h200-training.jsonl"):
        case = dict(row["case"])
        limit = case.pop("memory_limit_gib", None)
        cases.setdefault(json.dumps(case, sort_keys=True), []).append((limit, row["measured"]))
    wanted = 2 if both_sides else 1
    lines = [_boundary(json.loads(case), runs) for case, runs in cases.items() if len(_ends(runs)) >= wanted]
    return pd.DataFrame(lines)


def _ends(runs: Runs) -> dict[str, float]:
    """The highest limit that failed and the lowest that was survived, where there are any."""
    tried = [(limit, measured["status"]) for limit, measured in runs if limit]
    ends = {
        "oom": max((limit for limit, status in tried if status == "oom"), default=None),
        "ok": min((limit for limit, status in tried if status == "ok"), default=None),
    }
    return {status: limit for status, limit in ends.items() if limit is not None}


def _boundary(case: dict[str, Any], runs: Runs) -> dict[str, Any]:
    forecast = planner.forecast_training(planner.parse_training_case(case))
    ends = _ends(runs)
    free = [measured for limit, measured in runs if not limit and measured["status"] == "ok"]
    low, high = forecast.band_bytes("required")
    return {
        "model": case["hf_config"]["model_type"],
        "method": case["method"],
        "stage": case.get("zero_stage", 0),
        "class": forecast.residuals.name,
        "failed up to": ends.get("oom"),
        "survived from": ends.get("ok"),
        "required": forecast.required_bytes / GIB,
        "low": low / GIB,
        "high": high / GIB,
        "placed": placed_required_gib(forecast.to_dict(), free[-1]) if free else None,
    }
