"""Main memory: forecasts for one process beside the resident memory that was measured.

python benchmarks/residuals.py --host
"""

from __future__ import annotations

from typing import Any

import pandas as pd

import planner
from benchmarks.residuals import read_lines
from planner.host import LOADING, SAVING, host_bytes, host_peak_bytes
from planner.network.build import build_network
from planner.tables import DATA
from planner.units import GIB


def host_table() -> pd.DataFrame:
    """Resident memory of rank 0 against the forecast for it, each setting once.

    Resident memory counts pinned blocks and mapped files. These runs loaded and saved nothing: models were built
    on the GPU, quantised ones in main memory. Without real ranks a process has no NCCL, 0.4 GiB less.
    """
    lines = [_host_line(row) for row in read_lines(DATA / "measured/h200-training.jsonl")]
    frame = pd.DataFrame([line for line in lines if line is not None])
    keys = [name for name in frame.columns if name != "measured"]
    table = frame.groupby(keys, as_index=False, sort=False)["measured"].max()
    table["error %"] = 100 * (table["forecast"] / table["measured"] - 1)
    return table


def _host_line(row: dict[str, Any]) -> dict[str, Any] | None:
    case, measured = {**row["case"], "memory_limit_gib": None}, row["measured"]
    if "host_max_rss_gib" not in measured:
        return None
    parsed = planner.parse_training_case(case)
    uses = host_bytes(parsed, build_network(parsed), ranks_per_node=1)
    quantised = case["method"] == "qlora"
    left_out = (SAVING,) if quantised else (SAVING, LOADING)
    uses = {use: size for use, size in uses.items() if use not in left_out}
    real = "fake" not in measured["ranks"]
    return {
        "model": row["name"],
        "method": case["method"],
        "stage": case.get("zero_stage", 0),
        "ranks": parsed.world_size,
        "NCCL": real,
        "offload": f"{parsed.offload_optimizer}, {parsed.offload_param}",
        "measured": measured["host_max_rss_gib"],
        "forecast": host_peak_bytes(uses) / GIB,
    }
