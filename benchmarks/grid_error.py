"""How far the grid's estimates lie from the full play, over the settings of every measured row.

    python benchmarks/grid_error.py [WORST]

The play itself is compared with measurements by `accuracy.py`; here both sides are forecasts.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import planner
from benchmarks.measured import measured_rows
from planner.choose import estimate_bytes


def main() -> None:
    """Print the worst rows and the distribution."""
    worst = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows, spent_s = [], 0.0
    seen: set[str] = set()
    for row in measured_rows():
        content = {k: v for k, v in row["case"].items() if k != "memory_limit_gib"}
        if json.dumps(content, sort_keys=True) in seen:
            continue
        seen.add(json.dumps(content, sort_keys=True))
        case = planner.parse_training_case(content)
        forecast = planner.forecast_training(case)
        played = forecast.highest_bytes
        began = time.perf_counter()
        estimate = estimate_bytes(case)
        spent_s += time.perf_counter() - began
        setting = (
            f"{case.architecture.model_type} {case.method.value} stage {case.zero_stage} x{case.world_size}"
        )
        rows.append((100 * (estimate / played - 1), row["id"], setting, estimate, played))
    rows.sort(key=lambda item: -abs(item[0]))
    for off, name, setting, estimate, played in rows[:worst]:
        print(f"{name:6}{setting:34}{estimate / 2**30:9.2f}{played / 2**30:9.2f} GiB{off:+8.1f} %")
    errors = sorted(abs(item[0]) for item in rows)
    print(
        f"{len(errors)} settings: mean {statistics.mean(errors):.2f} %, median {statistics.median(errors):.2f} %, "
        f"95th percentile {errors[int(0.95 * len(errors))]:.1f} %, worst {errors[-1]:.1f} %; "
        f"{1e3 * spent_s / len(errors):.1f} ms each, profile included"
    )


if __name__ == "__main__":
    main()
