"""The planner's bands from held-out residuals, and main memory against what processes took.

    python benchmarks/residuals.py            print classes, quantiles and coverage
    python benchmarks/residuals.py --write    also write planner/data/residuals.yaml
    python benchmarks/residuals.py --host     forecasts of main memory beside measured resident memory

Held out: rows whose forecast was frozen before the measurement (results/README.md); the frozen figures count, not
today's. A residual is measured / forecast - 1. The first set of 44 rows does not count: its forecasts were made
with an allocator emulation that has since been replaced.

The smallest surviving limit of these rows was not measured. It lies between what was live and what was reserved without
a limit; the residual of `required` puts it as far up that way as the forecast did. On the rows of
h200-training.jsonl that do show the boundary of failure, `--boundaries` compares both.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import planner
from benchmarks.measured import measured_rows
from planner.tables import DATA
from planner.uncertainty import (
    CLASSES,
    EXPANDABLE,
    FIGURES,
    SIMULATED_0_2,
    SIMULATED_3,
    SIMULATED_CLASSES,
    UNCOMMON,
    residual_class,
)

RESULTS = Path(__file__).parent / "results"
SETS = ("h200-2026-11-29-settings", "h200-2026-11-29-fresh")
SIMULATED = RESULTS / "simulated-2026-11-30.jsonl"
UNKNOWN = "h200-2026-11-30-unknown"
OTHER_CODE = ("granitemoehybrid",)  # simulated with another transformers than was measured: results/README.md
SHIPPED = DATA / "residuals.yaml"
CONFIDENCE = 0.95  # of one end of a band
STAGE_3 = 3
FEWEST = 8  # below, a class says nothing of its own and takes the wider of its extremes and the pooled band
FLOOR = 0.005  # no band is narrower: allocator rounding and libraries of other versions
HEADER = """\
# Bands around forecasts as shares of the forecast: [low, high]. Made by `python benchmarks/residuals.py --write` from rows
# whose forecasts were frozen before they were measured, and of simulations, to which nothing is fitted, from all rows; do
# not edit. Which case belongs to which class: planner/uncertainty.py.
"""


@dataclass(frozen=True)
class Row:
    """One held-out row: its class and the residual of each figure."""

    id: str
    group: str
    residuals: dict[str, float]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def held_out() -> list[Row]:
    """Every valid row that was measured after its forecast was frozen."""
    rows: list[Row] = []
    for name in SETS:
        frozen = {row["id"]: row for row in read_lines(RESULTS / f"{name}-frozen.jsonl")}
        for row in read_lines(RESULTS / f"{name}-measured.jsonl"):
            said, measured = frozen[row["id"]], row["measured"]
            if measured["status"] != "ok" or "error" in said:
                continue
            group = residual_class(planner.parse_training_case(row["case"]))
            rows.append(Row(row["id"], group, residuals_of_row(said, measured)))
    return rows


def simulated() -> list[Row]:
    """Every measured row that was simulated: nothing in the simulation is fitted to any of them.

    Families that no formula knows were simulated before they were measured; of the others `tiers.py` keeps what the
    simulation says today.
    """
    rows = {row["id"]: row for row in measured_rows()}
    said = read_lines(SIMULATED)
    rows |= {row["id"]: row for row in read_lines(RESULTS / f"{UNKNOWN}-measured.jsonl")}
    said += read_lines(RESULTS / f"{UNKNOWN}-frozen.jsonl")
    found = []
    for one in said:
        row = rows[one["id"]]
        case, measured = row["case"], row["measured"]
        if "error" in one or row["name"] in OTHER_CODE or "marks" not in measured:
            continue
        if case.get("memory_limit_gib") is None:
            group = SIMULATED_3 if case.get("zero_stage") == STAGE_3 else SIMULATED_0_2
            found.append(Row(row["id"], group, residuals_of_row(one, measured)))
    return found


def residuals_of_row(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, float]:
    """Measured / forecast - 1 of each figure."""
    return {
        "peak_allocated": measured["peak_allocated_gib"] / said["peak_allocated_gib"] - 1,
        "required": placed_required_gib(said, measured) / said["required_gib"] - 1,
        "peak_reserved": measured["peak_reserved_gib"] / said["peak_reserved_gib"] - 1,
    }


def placed_required_gib(said: dict[str, Any], measured: dict[str, Any]) -> float:
    """Where between live and reserved memory the boundary should lie, going by the forecast's own share."""
    live_said = max(said["peak_allocated_gib"], said["engine_start_gib"])
    cached_said = said["peak_reserved_gib"] - live_said
    share = (said["required_gib"] - live_said) / cached_said if cached_said > 0 else 1.0
    start = max(mark["peak"] for name, mark in measured["marks"].items() if name in ("model", "engine"))
    live = max(measured["peak_allocated_gib"], start)
    return live + share * (measured["peak_reserved_gib"] - live)


def samples(rows: Sequence[Row], group: str, figure: str) -> list[float]:
    """Residuals that speak for a figure of a class.

    With expandable segments a job requires hardly more than its live tensors, which do not depend on the
    allocator: what is live in common jobs of any allocator counts there too.
    """
    own = [row.residuals[figure] for row in rows if row.group == group]
    if group != EXPANDABLE or figure == "peak_reserved":
        return own
    return own + [row.residuals["peak_allocated"] for row in rows if row.group not in (EXPANDABLE, UNCOMMON)]


def end(values: Sequence[float]) -> float:
    """Upper end: the smallest value that a new one stays below with 95 % confidence, or the largest there is."""
    ordered = sorted(values)
    rank = math.ceil(CONFIDENCE * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]


def band(values: Sequence[float], pooled: Sequence[float]) -> tuple[float, float]:
    """Both ends for a class.

    From 19 rows on the order statistic of its own; from 8 on its extremes; below, the wider of its extremes and the
    pooled order statistic. At least the floor.
    """
    high, low = end(values) if values else 0.0, -end([-v for v in values]) if values else 0.0
    if len(values) < FEWEST:
        high, low = max(high, end(pooled)), min(low, -end([-v for v in pooled]))
    return min(low, -FLOOR), max(high, FLOOR)


def bands(rows: Sequence[Row], groups: Sequence[str] = CLASSES) -> dict[str, dict[str, Any]]:
    """Of a tier: class -> rows and the band of each figure. A class without rows gets the widest there is."""
    table: dict[str, dict[str, Any]] = {}
    for group in groups:
        table[group] = {"rows": sum(row.group == group for row in rows)}
        for figure in FIGURES:
            table[group][figure] = band(samples(rows, group, figure), pooled(rows, figure))
    for entry in table.values():
        if not entry["rows"]:
            for figure in FIGURES:
                others = [one[figure] for one in table.values()]
                entry[figure] = (min(low for low, _ in others), max(high for _, high in others))
    return table


def pooled(rows: Sequence[Row], figure: str) -> list[float]:
    """Residuals of all classes together."""
    return [row.residuals[figure] for row in rows]


def coverage(rows: Sequence[Row], groups: Sequence[str] = CLASSES) -> Iterator[tuple[str, str, float, float]]:
    """Class, figure, share of its rows inside the band and below its upper end when each is left out in turn."""
    hits: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for index, row in enumerate(rows):
        table = bands([*rows[:index], *rows[index + 1 :]], groups)
        for figure in FIGURES:
            low, high = table[row.group][figure]
            value = row.residuals[figure]
            hits.setdefault((row.group, figure), []).append((low <= value <= high, value <= high))
            hits.setdefault(("all", figure), []).append((low <= value <= high, value <= high))
    for (group, figure), found in hits.items():
        count = len(found)
        yield group, figure, sum(both for both, _ in found) / count, sum(up for _, up in found) / count


def outward(low: float, high: float) -> list[float]:
    """Both ends with four digits, never narrower."""
    return [math.floor(low * 1e4) / 1e4, math.ceil(high * 1e4) / 1e4]


def document(rows: Sequence[Row], of_simulation: Sequence[Row]) -> str:
    """The text of residuals.yaml."""
    table = {
        group: {"rows": entry["rows"], **{f: outward(*entry[f]) for f in FIGURES}}
        for group, entry in {**bands(rows), **bands(of_simulation, SIMULATED_CLASSES)}.items()
    }
    held = {"confidence": CONFIDENCE, "rows": len(rows) + len(of_simulation), "classes": table}
    return HEADER + yaml.safe_dump(held, sort_keys=False, default_flow_style=None, width=110)


def print_bands(rows: Sequence[Row], groups: Sequence[str] = CLASSES) -> None:
    """Classes, bands and coverage, in percent."""
    inside = {(group, figure): (both, up) for group, figure, both, up in coverage(rows, groups)}
    lines = [
        {
            "class": group,
            "rows": entry["rows"],
            "figure": figure,
            "samples": len(samples(rows, group, figure)),
            "low %": 100 * entry[figure][0],
            "high %": 100 * entry[figure][1],
            "inside %": 100 * inside.get((group, figure), (math.nan, math.nan))[0],
            "below high %": 100 * inside.get((group, figure), (math.nan, math.nan))[1],
        }
        for group, entry in bands(rows, groups).items()
        for figure in FIGURES
    ]
    print(pd.DataFrame(lines).round(2).to_string(index=False), "\n")
    print("Leave one out, all classes:")
    for figure in FIGURES:
        both, up = inside["all", figure]
        print(
            f"  {figure}: {100 * both:.1f} % inside, {100 * up:.1f} % below the upper end, {len(rows)} rows"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {SHIPPED.name}")
    parser.add_argument(
        "--boundaries", action="store_true", help="rows whose smallest surviving limit is known"
    )
    parser.add_argument("--host", action="store_true", help="main memory against measured resident memory")
    args = parser.parse_args()
    if args.host:
        from benchmarks.host_memory import host_table

        print(host_table().round(2).to_string(index=False))
        return
    if args.boundaries:
        from benchmarks.boundaries import boundaries

        print(boundaries().round(3).to_string(index=False))
        return
    rows, of_simulation = held_out(), simulated()
    print_bands(rows)
    print("\nThe tier simulate:")
    print_bands(of_simulation, SIMULATED_CLASSES)
    if args.write:
        SHIPPED.write_text(document(rows, of_simulation), encoding="utf-8")


if __name__ == "__main__":
    main()
