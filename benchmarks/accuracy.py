"""Forecasts against measured memory: by method, stage and architecture, and the worst rows.

    python benchmarks/accuracy.py [--csv FILE]

Errors are forecast / measured - 1. No fitted constant enters them; formulas were mended after seeing rows. On rows of
h200-validation.jsonl the forecast that was frozen before the measurement stands beside today's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

import planner
from planner.tables import DATA
from planner.training_case import parse_training_case

GIB = 1024**3
FROZEN = Path(__file__).parent / "results/h200-2026-11-29-frozen.jsonl"
WORST = 8


def measured_rows() -> list[dict[str, Any]]:
    files = ("h200-training.jsonl", "h200-validation.jsonl")
    lines = [line for name in files for line in (DATA / "measured" / name).read_text().splitlines()]
    return [json.loads(line) for line in lines]


def frozen() -> dict[str, float]:
    rows = map(json.loads, FROZEN.read_text().splitlines())
    return {row["id"]: row["peak_allocated_gib"] for row in rows}


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One line a measured run that survived."""
    before = frozen()
    lines = []
    for row in rows:
        case, measured = row["case"], row["measured"]
        if measured["status"] != "ok":
            continue
        forecast = planner.forecast_training(parse_training_case(case))
        allocated = measured["peak_allocated_gib"]
        limited = case.get("memory_limit_gib") is not None
        lines.append(
            {
                "id": row["id"],
                "architecture": row["name"],
                "method": case["method"],
                "stage": case.get("zero_stage", 0),
                "measured_gib": allocated,
                "allocated": forecast.peak_allocated_bytes / GIB / allocated - 1,
                "reserved": None
                if limited
                else forecast.peak_reserved_bytes / GIB / measured["peak_reserved_gib"] - 1,
                "frozen": before[row["id"]] / allocated - 1 if row["id"] in before else None,
            }
        )
    return pd.DataFrame(lines)


def summary(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Mean and worst error of each class, in percent."""
    groups = frame.groupby(by)
    return pd.DataFrame(
        {
            "rows": groups.size(),
            "allocated mean %": groups["allocated"].apply(lambda e: 100 * e.abs().mean()),
            "allocated worst %": groups["allocated"].apply(lambda e: 100 * e.loc[e.abs().idxmax()]),
            "reserved mean %": groups["reserved"].apply(lambda e: 100 * e.abs().mean()),
            "frozen mean %": groups["frozen"].apply(lambda e: 100 * e.abs().mean()),
        }
    ).round(2)


def verdicts(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Would it survive its limit? Forecast against what happened."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        limit = row["case"].get("memory_limit_gib")
        if limit is None:
            continue
        case = parse_training_case({**row["case"], "memory_limit_gib": None})
        said = "fits" if planner.forecast_training(case).survives(int(limit * GIB)) else "does not fit"
        key = (said, row["measured"]["status"])
        counts[key] = counts.get(key, 0) + 1
    return pd.Series(counts).unstack(fill_value=0).rename_axis("forecast \\ happened")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="write one line a row")
    args = parser.parse_args()
    rows = measured_rows()
    frame = table(rows)
    for by in ("method", "stage", "architecture"):
        print(summary(frame, by).to_string(), "\n")
    worst = frame.reindex(frame["allocated"].abs().sort_values(ascending=False).index).head(WORST)
    print("Worst rows\n", worst.round(4).to_string(index=False), "\n", sep="")
    print(verdicts(rows).to_string(), "\n")
    error = frame["allocated"].abs() * 100
    print(
        f"{len(frame)} rows, allocated: mean {error.mean():.3f} %, median {error.median():.3f} %, worst {error.max():.2f} %"
    )
    if args.csv is not None:
        frame.to_csv(args.csv, index=False)


if __name__ == "__main__":
    main()
