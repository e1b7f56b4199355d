"""The tiers side by side on measured rows: errors of each, and the processor time that it took.

    python benchmarks/tiers.py simulate OUT.jsonl [--rows PREFIX ...]     simulate rows, appending what comes out
    python benchmarks/tiers.py table OUT.jsonl ...                        formula and simulation against what was measured

Rows that differ in a memory limit alone are simulated once; reserved memory is compared where nothing limited it.
Rows that are there already are not simulated again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd

import planner
from benchmarks.measured import measured_rows
from planner.errors import CaseError
from planner.units import GIB

LIMIT = "memory_limit_gib"


def simulate_rows(out: Path, prefixes: list[str]) -> None:
    """Simulate what is not there yet."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import peft
    import transformers

    assert all((deepspeed, peft, transformers))  # imports are not counted
    done = {json.loads(line)["id"] for line in out.read_text().splitlines()} if out.exists() else set()
    for row in distinct(measured_rows()):
        if row["id"] in done or not row["id"].startswith(tuple(prefixes)):
            continue
        began = time.process_time()
        found = {"id": row["id"], **simulated(row["case"])}
        found["processor_s"] = round(time.process_time() - began, 2)
        with out.open("a") as file:
            file.write(json.dumps(found) + "\n")


def simulated(case: dict[str, Any]) -> dict[str, Any]:
    """What the simulation says of a case without its limit."""
    try:
        forecast = planner.predict({**case, LIMIT: None}, tier="simulate")
    except CaseError as error:
        return {"error": str(error)}
    assert isinstance(forecast, planner.Forecast)
    return {
        "peak_allocated_gib": forecast.peak_allocated_bytes / GIB,
        "peak_reserved_gib": forecast.peak_reserved_bytes / GIB,
        "required_gib": forecast.required_bytes / GIB,
        "engine_start_gib": forecast.start_peak_bytes / GIB,
    }


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that survived, one of each setting; one without a limit where there is one."""
    kept: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["case"].get(LIMIT) is not None):
        if row["measured"]["status"] == "ok":
            kept.setdefault(json.dumps({**row["case"], LIMIT: None}, sort_keys=True), row)
    return sorted(kept.values(), key=lambda row: row["id"])


def table(paths: list[Path]) -> None:
    """Print errors in percent and times."""
    rows = {row["id"]: row for row in measured_rows()}
    answers = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    refused = [answer for answer in answers if "error" in answer]
    frame = pd.DataFrame([compared(rows[a["id"]], a) for a in answers if "error" not in a])
    for by in ("method", "stage"):
        print(frame.groupby(by).apply(summary, include_groups=False).round(3).to_string(), "\n")
    print(summary(frame).round(3).to_string(), "\n")
    worst = frame.reindex(frame["simulate allocated"].abs().sort_values(ascending=False).index).head(8)
    print(worst.round(3).to_string(index=False), "\n")
    print(f"{len(refused)} rows refused:")
    print(pd.Series([answer["error"] for answer in refused]).value_counts().to_string())


def compared(row: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Errors of both tiers on one row, in percent."""
    case, measured = row["case"], row["measured"]
    began = time.process_time()
    formula = planner.forecast_training(planner.parse_training_case({**case, LIMIT: None}))
    formula_s = time.process_time() - began
    unlimited = case.get(LIMIT) is None
    line = {
        "id": row["id"],
        "name": row["name"],
        "method": case["method"],
        "stage": case.get("zero_stage", 0),
    }
    for figure in ("allocated", "reserved"):
        known = measured.get(f"peak_{figure}_gib") if unlimited or figure == "allocated" else None
        ours = {
            "formula": getattr(formula, f"peak_{figure}_bytes") / GIB,
            "simulate": answer[f"peak_{figure}_gib"],
        }
        for tier, gib in ours.items():
            line[f"{tier} {figure}"] = None if known is None else 100 * (gib / known - 1)
    return line | {"formula s": formula_s, "simulate s": answer["processor_s"]}


def summary(frame: pd.DataFrame) -> pd.Series:
    """Mean and worst errors, and mean times."""
    found: dict[str, float] = {"rows": len(frame)}
    for column in frame.columns:
        if column.split()[0] not in ("formula", "simulate"):
            continue
        values = frame[column].dropna().astype(float)
        found[f"{column} mean"] = values.abs().mean()
        if not column.endswith(" s"):
            found[f"{column} worst"] = values.loc[values.abs().idxmax()] if len(values) else float("nan")
    return pd.Series(found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("simulate")
    verb.add_argument("out", type=Path)
    verb.add_argument("--rows", nargs="+", default=[""], metavar="PREFIX")
    verbs.add_parser("table").add_argument("answers", type=Path, nargs="+")
    args = parser.parse_args()
    if args.verb == "simulate":
        simulate_rows(args.out, args.rows)
    else:
        table(args.answers)


if __name__ == "__main__":
    main()
