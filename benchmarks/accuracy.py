"""Forecasts against measured memory: by method, stage and architecture, and the worst rows.

    python benchmarks/accuracy.py [--by method stage architecture] [--rivals FILE] [--csv FILE]

FILE of `--rivals` comes from benchmarks/rivals/run.py; each rival then stands beside us on the rows in its scope.
Errors are forecast / measured - 1. No fitted constant enters them; formulas were mended after seeing rows. On rows of
h200-validation, h200-settings, h200-fresh, h200-grid and h200-coverage the forecast that was frozen before measuring
stands beside today's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

import planner
from benchmarks.measured import measured_rows
from benchmarks.rivals.compare import against_rivals, out_of_scope
from planner.units import GIB
from planner.verdict import judge

FROZEN = tuple(
    Path(__file__).parent / f"results/{name}-frozen.jsonl"
    for name in (
        "h200-2026-11-29",
        "h200-2026-11-29-settings",
        "h200-2026-11-29-fresh",
        "h200-2026-11-29-boundary",
        "h200-2026-11-30-grid",
        "h200-2026-11-30-coverage",
        "h200-2026-11-30-kernels",
    )
)
WORST = 8
FIGURES = ("peak_allocated", "peak_reserved", "device_used")
GROUPS = ("method", "stage", "architecture")
SHOWN = ["id", *GROUPS, "measured_gib", "allocated", "reserved", "frozen"]


def frozen() -> dict[str, float]:
    rows = (json.loads(line) for path in FROZEN for line in path.read_text().splitlines())
    return {row["id"]: row.get("formula", row)["peak_allocated_gib"] for row in rows}


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One line a measured run that survived."""
    before = frozen()
    lines = [_line(row, before.get(row["id"])) for row in rows if row["measured"]["status"] == "ok"]
    return pd.DataFrame(lines)


def _line(row: dict[str, Any], before: float | None) -> dict[str, Any]:
    case, measured = row["case"], row["measured"]
    forecast = planner.forecast_training(planner.parse_training_case(case))
    allocated = measured["peak_allocated_gib"]
    reserved = None if case.get("memory_limit_gib") is not None else measured["peak_reserved_gib"]
    ours = {name: getattr(forecast, f"{name}_bytes") / GIB for name in FIGURES}
    return {
        "id": row["id"],
        "architecture": row["name"],
        "method": case["method"],
        "stage": case.get("zero_stage", 0),
        "measured_gib": allocated,
        "allocated": ours["peak_allocated"] / allocated - 1,
        "reserved": None if reserved is None else ours["peak_reserved"] / reserved - 1,
        "frozen": None if before is None else before / allocated - 1,
        "setting": json.dumps({k: v for k, v in case.items() if k != "memory_limit_gib"}, sort_keys=True),
        "measured_reserved_gib": reserved,
        "measured_process_gib": measured.get(
            "device_used_gib", None if reserved is None else reserved + forecast.device_extra_bytes / GIB
        ),
        **{f"forecast_{name}_gib": gib for name, gib in ours.items()},
    }


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
        case = planner.parse_training_case({**row["case"], "memory_limit_gib": None})
        verdict = judge(case, planner.forecast_training(case), budget_bytes=int(limit * GIB))
        key = (verdict.label, row["measured"]["status"])
        counts[key] = counts.get(key, 0) + 1
    return pd.Series(counts).unstack(fill_value=0).rename_axis("forecast \\ happened")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="write one line a row")
    parser.add_argument("--by", nargs="+", choices=GROUPS, default=list(GROUPS), help="how to group")
    parser.add_argument("--rivals", type=Path, help="answers of benchmarks/rivals/run.py")
    args = parser.parse_args()
    rows = measured_rows()
    frame = table(rows)
    for by in args.by:
        print(summary(frame, by).to_string(), "\n")
    worst = frame.reindex(frame["allocated"].abs().sort_values(ascending=False).index).head(WORST)
    print("Worst rows\n", worst[SHOWN].round(4).to_string(index=False), "\n", sep="")
    print(verdicts(rows).to_string(), "\n")
    if args.rivals is not None:
        print_rivals(frame, args.rivals, args.by)
    error = frame["allocated"].abs() * 100
    print(
        f"{len(frame)} rows, allocated: mean {error.mean():.3f} %, median {error.median():.3f} %, worst {error.max():.2f} %"
    )
    if args.csv is not None:
        frame[SHOWN].to_csv(args.csv, index=False)


def print_rivals(frame: pd.DataFrame, path: Path, by: list[str]) -> None:
    """Each rival within its scope, we beside it; then by group; then why rows were left out."""
    answers = pd.DataFrame(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    print("Rivals, each on the rows in its own scope and by the metric it says it predicts (errors in %).")
    print("Settings measured several times count once. process: nvidia-smi where it was read, elsewhere")
    print(
        "reserved plus context and libraries as measured on this machine. Every row ran under DeepSpeed, which the"
    )
    print(
        "tools for one GPU do not know; DeepSpeed's and accelerate's estimators leave activations out by intent.\n"
    )
    print(against_rivals(frame, answers).to_string(), "\n")
    for group in by:
        print(against_rivals(frame, answers, group).to_string(), "\n")
    print(out_of_scope(frame, answers).to_string(), "\n")


if __name__ == "__main__":
    main()
