"""Measures training memory on one GPU, any world size: rank 0 for real, the others a fake process group.

    python benchmarks/measure_training.py one CASE.json OUT.json      one case, in this process
    python benchmarks/measure_training.py all CASES.jsonl OUT.jsonl   all cases, several at a time

Collectives of the fake group do nothing: memory is right, losses are not. Random weights and tokens, three
optimizer steps, clipping at 1.0. Cases are in the format of docs/case-format.md. Each case runs in its own
process, so that each has its own allocator. With TRACE=1 each request to the allocator is written beside the
result; `compare_trace.py` shows where it and the emulation part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring.loop import run_case
from measuring.marks import GIB

AT_ONCE = int(os.environ.get("AT_ONCE", "7"))
TIMEOUT_S = 240


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Measure one case and tell running out of memory from other failures."""
    import torch

    try:
        trace = sys.argv[3].replace(".out", ".trace.gz") if os.environ.get("TRACE") else ""
        return run_case(case, trace)
    except torch.OutOfMemoryError:
        return {"status": "oom", "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB}


def run_all(cases: Path, out: Path) -> None:
    """Several processes at a time; results are appended as they come."""
    rows = [json.loads(line) for line in cases.read_text().splitlines() if line.strip()]
    running: list[tuple[dict[str, Any], subprocess.Popen[bytes], Path, float]] = []
    work = out.parent / "cases"
    work.mkdir(parents=True, exist_ok=True)
    while rows or running:
        while rows and len(running) < AT_ONCE:
            row = rows.pop(0)
            source = work / f"{row['id']}.json"
            source.write_text(json.dumps(row["case"]))
            target = source.with_suffix(".out")
            log = source.with_suffix(".log").open("wb")
            environment = dict(os.environ)
            if row["case"].get("expandable_segments"):
                environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            command = [sys.executable, __file__, "one", str(source), str(target)]
            running.append(
                (row, subprocess.Popen(command, stdout=log, stderr=log, env=environment), target, time.time())
            )
        time.sleep(0.5)
        running = [job for job in running if not finished(job, out)]


def finished(job: tuple[dict[str, Any], subprocess.Popen[bytes], Path, float], out: Path) -> bool:
    """Collect a process that has ended or overstayed."""
    row, process, target, began = job
    if process.poll() is None and time.time() - began < TIMEOUT_S:
        return False
    if process.poll() is None:
        process.kill()
    if target.exists():
        result = json.loads(target.read_text())
    else:
        log = target.with_suffix(".log").read_text(errors="replace").splitlines()
        result = {"status": "failed", "log": log[-6:]}
    with out.open("a") as file:
        file.write(json.dumps({**row, "measured": result}) + "\n")
    print(row["id"], result["status"], result.get("peak_allocated_gib"), flush=True)
    return True


def main() -> None:
    """Command line."""
    verb, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if verb == "all":
        run_all(source, target)
        return
    result = measured(json.loads(source.read_text()))
    target.write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
