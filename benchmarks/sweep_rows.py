"""Turn the points of a finished sweep of one job into measured rows: `python -m benchmarks.sweep_rows SWEEP RUNS > rows.jsonl`.

SWEEP is the folder with sweep.json and ledger.jsonl, RUNS the one that the run folders were kept in. A row's case is
written in the case format and must parse to the very case that the run was planned with.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from llmsys_exp.config.compose import compose_config
from llmsys_exp.plan.budget import allocator_limit_bytes
from llmsys_exp.plan.resolve import settle
from llmsys_exp.runs.measured import widest_tokens
from llmsys_exp.sweeps.folder import open_sweep
from planner.parsing import parse_training_case
from planner.tables import model_config
from planner.training_case import TrainingCase
from planner.units import GIB

ENDS = {"done": "ok", "oom_gpu": "oom"}
ZERO = ("overlap_comm", "reduce_bucket_size", "stage3_gather_16bit_weights_on_model_save")
PEAKS = {"peak allocated": "peak_allocated_gib", "peak reserved": "peak_reserved_gib"}


def case_of(case: TrainingCase, entry: str) -> dict[str, Any]:
    """Write a case in the case format.

    Raises:
        ValueError: when it does not parse to the same case.
    """
    lora = case.lora
    written: dict[str, Any] = {
        "hf_config": dict(model_config(entry)),
        "method": case.method.value,
        "world_size": case.world_size,
        "zero_stage": case.zero_stage,
        "offload_optimizer": case.offload_optimizer,
        "offload_param": case.offload_param,
        "micro_batch": case.micro_batch,
        "seq_len": case.seq_len,
        "grad_accum": case.grad_accum,
        "gradient_checkpointing": case.gradient_checkpointing,
        "dtype": case.dtype,
        "optimizer": case.optimizer,
        "expandable_segments": case.expandable_segments,
        "deepspeed": {"zero_optimization": {key: getattr(case.zero, key) for key in ZERO}},
    }
    if lora is not None:
        written["lora"] = {
            "r": lora.r,
            "target_modules": lora.target_modules
            if isinstance(lora.target_modules, str)
            else list(lora.target_modules),
            "dropout": lora.dropout,
        }
    parsed = parse_training_case(written)
    other = [one.name for one in fields(case) if getattr(parsed, one.name) != getattr(case, one.name)]
    if set(other) - {"memory_limit_bytes", "device"}:
        raise ValueError(
            f"not the same case: {[(name, getattr(parsed, name), getattr(case, name)) for name in other]}"
        )
    return written


def rows(folder: Path, runs: Path, prefix: str) -> list[dict[str, Any]]:
    """One row a point that was started."""
    paths, sweep = open_sweep(folder)
    found = []
    for point, state in zip(sweep.points, sweep.ledger(paths).states().values(), strict=True):
        status = ENDS.get(str(state.fields.get("kind") or state.state))
        if status is None:
            continue
        config = compose_config([*sweep.overrides(point), "gate=off"])
        settled = settle(config)
        limit = allocator_limit_bytes(settled.config, settled.case)
        case = case_of(settled.case, str(settled.config.model.entry))
        measured: dict[str, Any] = {"status": status, "ranks": "one process"}
        if status == "ok":
            run = Path(state.fields["folder"])
            manifest = json.loads((runs / run.parent.name / run.name / "manifest.json").read_text())
            by_name = {
                one["name"].strip(): one["measured_bytes"] / GIB for one in manifest["measured"]["rows"]
            }
            if by_name["engine start"] >= by_name["peak allocated"]:
                print(f"point {point.number}: left out, its peak was no step's", file=sys.stderr)
                continue
            if widest_tokens(manifest["results"]["train"]) < settled.case.seq_len:
                print(f"point {point.number}: left out, no batch was as wide as planned", file=sys.stderr)
                continue
            measured |= {key: by_name[name] for name, key in PEAKS.items()}
        row = {"id": f"{prefix}{point.number:03d}", "name": settled.config.model.entry}
        found.append(row | {"case": case | {"memory_limit_gib": (limit or 0) / GIB}, "measured": measured})
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--prefix", default="g", help="before the numbers of the points")
    args = parser.parse_args()
    for row in rows(args.sweep, args.runs, args.prefix):
        print(json.dumps(row))
