"""Forecasts against public memory cases: what other people measured, and what fitted or did not.

    python benchmarks/field_cases.py CASES.jsonl [--out FILE] [--row ID ...]

A record (format: README beside the records) becomes a planner case (benchmarks/field/translate.py), is refused with
a reason, or waits for a key that the planner lacks. Errors compare with the metric that the record states; where it
gives a range, or the forecast is one, the error is the gap between them, so 0 inside. No constant was fitted to these
records. Tables are correlated: read the figures by group. `source_forecast_gib` in a record is what the source's own
tool had forecast (benchmarks/field/rivals_own.jsonl).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

import planner
from benchmarks.field.engines import Waiting
from benchmarks.field.parts import NotTranslated, Record
from benchmarks.field.translate import Translation, translate
from planner.forecasting import device_extra_bytes
from planner.host import SAVING, host_peak_bytes
from planner.units import GIB

FIGURES = {"allocated": "peak_allocated", "reserved": "peak_reserved", "process": "device_used"}
MEASURED = "measured"
GPUS_A_NODE = 8
Range = tuple[float, float]


def metric_of(record: Record) -> str:
    """Which figure of a forecast the record's metric is; `between` where the record does not say."""
    said = str(record.get("measured_metric", "")).lower()
    if "allocated" in said:
        return "allocated"
    if "reserved" in said:
        return "reserved"
    if "nvidia-smi" in said or "dashboard" in said or "nvml" in said:
        return "process"
    return "between"


def gap(forecast: Range, measured: Range) -> float:
    """Signed relative distance of two ranges; 0 where they meet."""
    if forecast[0] > measured[1]:
        return forecast[0] / measured[1] - 1
    if forecast[1] < measured[0]:
        return forecast[1] / measured[0] - 1
    return 0.0


def forecast_range(translation: Translation, metric: str) -> Range:
    """GiB of the stated metric over the cases of a translation."""
    wanted = FIGURES.values() if metric == "between" else [FIGURES[metric]]
    found: list[float] = []
    for case in translation.cases:
        forecast = planner.forecast_training(planner.parse_training_case(case))
        values = {name: getattr(forecast, f"{name}_bytes") / GIB for name in FIGURES.values()}
        found += [values[name] for name in wanted]
    return min(found), max(found)


def judged(record: Record) -> dict[str, Any]:
    """One line of the result: error or verdict, or why there is none."""
    line: dict[str, Any] = {
        "id": record["id"], "group": record["group"], "confidence": record["confidence"], "outcome": record["outcome"],
    }  # fmt: skip
    try:
        translation = translate(record)
        answer = (
            _error(record, translation) if record["outcome"] == MEASURED else _verdict(record, translation)
        )
    except NotTranslated as reason:
        return line | {"state": "refused", "reason": str(reason)}
    except Waiting as key:
        return line | {"state": "waiting", "reason": str(key)}
    except planner.CaseError as error:
        return line | {"state": "refused", "reason": "the planner refuses: " + "; ".join(error.problems)}
    return line | answer | {"notes": translation.notes}


def _error(record: Record, translation: Translation) -> dict[str, Any]:
    metric = metric_of(record)
    low, high = record.get("measured_gib_range") or [record["measured_gib"]] * 2
    forecast = forecast_range(translation, metric)
    own = record.get("source_forecast_gib")
    theirs = {} if own is None else {"source_error": round(gap((own, own), (low, high)), 4)}
    return {
        **theirs,
        "state": "compared",
        "metric": metric,
        "measured_gib": [low, high],
        "forecast_gib": [round(value, 3) for value in forecast],
        "error": round(gap(forecast, (low, high)), 4),
    }


def _verdict(record: Record, translation: Translation) -> dict[str, Any]:
    """Would it fit? On the GPU, and on the host where the record says how much memory that had."""
    case = planner.parse_training_case(translation.cases[0])
    gpus_a_node = min(case.world_size, GPUS_A_NODE)
    forecast = planner.forecast_training(case, ranks_per_node=gpus_a_node)
    fits = {"gpu": forecast.survives(_budget_bytes(record, translation, case))}
    host_decides = str(record.get("host_outcome", "")).startswith("oom")
    if record.get("zero_stage") == "fsdp" and host_decides:
        raise NotTranslated("the host decided, while FSDP loaded the model: not modelled")
    host = host_peak_bytes({use: size for use, size in forecast.host.items() if use != SAVING})
    if record.get("zero_stage") != "fsdp" and record.get("host_ram_gb"):
        fits["host"] = host <= record["host_ram_gb"] * 10**9
    said = "fits" if all(fits.values()) else "oom"
    return {
        "state": "judged",
        "said": said,
        "agrees": said == record["outcome"],
        "forecast_gib": [round(forecast.required_bytes / GIB, 3)],
        "host_gib": round(host / GIB, 1) if "host" in fits else None,
    }


def _budget_bytes(record: Record, translation: Translation, case: planner.TrainingCase) -> int:
    if "gpu" not in translation.cases[0]:
        raise NotTranslated(f"GPU {record.get('gpu_name')!r} is not in the table")
    gpu = planner.gpu(case.device)
    return gpu.usable_bytes - device_extra_bytes(case) + int(gpu.context_gib * GIB)


def summary(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Rows and errors (in %) of each class."""
    groups = frame.groupby(by)["error"]
    columns = {
        "rows": groups.size(),
        "median |error| %": groups.apply(lambda e: 100 * e.abs().median()),
        "mean error %": groups.apply(lambda e: 100 * e.mean()),
        "worst %": groups.apply(lambda e: 100 * e.loc[e.abs().idxmax()]),
    }
    if "source_error" in frame:
        theirs = frame.dropna(subset=["source_error"]).groupby(by)
        columns["with source's forecast"] = theirs.size()
        columns["its median %"] = theirs["source_error"].apply(lambda e: 100 * e.abs().median())
        columns["ours there %"] = theirs["error"].apply(lambda e: 100 * e.abs().median())
    return pd.DataFrame(columns).round(2)


def report(lines: list[dict[str, Any]]) -> None:
    """Everything a reader needs to judge, refused rows included."""
    print("Rows:", ", ".join(f"{n} {state}" for state, n in Counter(x["state"] for x in lines).items()), "\n")
    compared = pd.DataFrame([line for line in lines if line["state"] == "compared"])
    if not compared.empty:
        for by in ("group", "confidence", "metric"):
            print(summary(compared, by).to_string(), "\n")
        ordered = compared.reindex(compared["error"].abs().sort_values(ascending=False).index)
        print(
            ordered[["id", "confidence", "metric", "measured_gib", "forecast_gib", "error"]].to_string(
                index=False
            )
        )
    verdicts = pd.DataFrame([line for line in lines if line["state"] == "judged"])
    if not verdicts.empty:
        print("\nVerdicts: agree", int(verdicts["agrees"].sum()), "of", len(verdicts))
        print(
            verdicts[["id", "confidence", "outcome", "said", "forecast_gib", "host_gib"]].to_string(
                index=False
            )
        )
    _why_not(lines)
    sure = compared[compared["confidence"] == "high"] if not compared.empty else compared
    if len(sure):
        median = 100 * sure["error"].abs().median()
        print(f"\nHigh-confidence measured rows: {len(sure)} compared, median |error| {median:.2f} %")


def _why_not(lines: list[dict[str, Any]]) -> None:
    for state in ("waiting", "refused"):
        reasons: dict[str, list[str]] = {}
        for line in lines:
            if line["state"] == state:
                reasons.setdefault(line["reason"], []).append(line["id"])
        if reasons:
            print(f"\n{state.capitalize()}:")
        for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
            print(f"  {len(ids):2d}  {reason}\n        {', '.join(ids)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="records, one JSON object a line")
    parser.add_argument("--out", type=Path, help="write one JSON object a record")
    parser.add_argument("--row", nargs="+", help="only these ids, with notes and case")
    args = parser.parse_args()
    records = [json.loads(line) for line in args.file.read_text(encoding="utf-8").splitlines()]
    records = [r for r in records if r.get("kind") == "train" and (not args.row or r["id"] in args.row)]
    lines = [judged(record) for record in records]
    report(lines)
    if args.row:
        print(json.dumps(lines, indent=1))
    if args.out is not None:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
