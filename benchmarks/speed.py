"""Step times: forecast against measured, row by row.

    python benchmarks/speed.py [FILE.jsonl ...]

Rows come from planner/data/measured and benchmarks/results where the GPU was used by that job alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import planner
from planner.speed import step_time
from planner.tables import DATA

ALONE = ("t016", "t020", "t024", "t035", "t049", "t051", "t054", "t055", "t056", "t068", "t089")
RESULTS = Path(__file__).parent / "results"
HELD_OUT = "p"  # first letter of rows timed after the constants were fitted and the forecast frozen
TIMED = ("h200-2026-11-29-speed.jsonl", "h200-2026-11-29-fresh-speed-measured.jsonl")


def rows(files: list[str]) -> list[dict[str, Any]]:
    """Rows timed alone."""
    if files:
        return [json.loads(line) for name in files for line in Path(name).read_text().splitlines()]
    lines = (DATA / "measured" / "h200-training.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if row["id"] in ALONE]
    for name in TIMED:
        found += [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]
    return found


def measured_s(row: dict[str, Any]) -> float:
    """The median of the later steps; with few steps, the shortest after the first."""
    steps = row["measured"]["step_s"]
    return statistics.median(steps[2:]) if len(steps) > 4 else min(steps[1:])


def main() -> None:
    """Print each row and the mean error, of fitted and of held-out rows."""
    errors: dict[str, list[float]] = {"fitted": [], "held out": []}
    print(f"{'row':6}{'setting':44}{'measured s':>11}{'forecast s':>11}{'off by':>8}  bound by")
    for row in rows(sys.argv[1:]):
        if row["measured"].get("status", "ok") != "ok":
            continue
        case = planner.parse_training_case({k: v for k, v in row["case"].items() if k != "memory_limit_gib"})
        time = step_time(case, case.micro_batch, case.seq_len, case.grad_accum)
        forecast, seconds = float(time.seconds), measured_s(row)
        off = 100 * (forecast / seconds - 1)
        errors["held out" if row["id"].startswith(HELD_OUT) else "fitted"].append(abs(off))
        gpu = float(time.compute_s + time.traffic_s)
        bound = "host" if gpu < float(time.host_s) else "GPU"
        setting = (
            f"{case.architecture.model_type} {case.method.value} stage {case.zero_stage} x{case.world_size} "
            f"{case.micro_batch}x{case.seq_len}{' ckpt' if case.gradient_checkpointing else ''}"
        )
        print(f"{row['id']:6}{setting:44}{seconds:11.3f}{forecast:11.3f}{off:+7.0f}%  {bound}")
    for name, found in errors.items():
        if found:
            mean, median = statistics.mean(found), statistics.median(found)
            print(f"{name}: {len(found)} rows, mean |error| {mean:.0f} %, median {median:.0f} %")


if __name__ == "__main__":
    main()
