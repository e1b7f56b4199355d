"""Are dry runs right? The same jobs once on two real ranks and once as one rank of two.

    python benchmarks/dryrun_check.py [FOLDER]      on a machine with two GPUs; five to six minutes; no network

Real runs come first, one after the other on both GPUs: three steps of `llmsys train`. Then the dry runs, one on
each GPU at a time, and jobs that are larger than this machine (7B on 8 ranks, 70B on 64), which stand beside the
formula alone. Weights are random and rows fill the length. FOLDER ($OUT, else outputs/dryrun_check) gets
`dryrun_check.jsonl`, a row a job; the table goes to the screen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from llmsys_exp.calibrate.jobs import LENGTH, rows_file, write_rows
from planner.units import GIB, MIB

GPUS = 2
REAL_UNTIL_S, START_UNTIL_S, ONE_S = 210, 300, 200
"""No real run begins after the first, no dry run after the second; none takes longer than the third."""
QWEN, LLAMA = "model=qwen2_5_0_5b", "model=llama3_2_1b"
H200 = ("hardware=h200", "hardware.gpus_per_node=2")
L4 = ("hardware=l4", "hardware.gpus_per_node=2", "hardware.enforce_memory=true", "gate.margin_gib=0")
CHECKPOINTED = "training.gradient_checkpointing=true"
BOTH = {
    "zero2-full": (*H200, QWEN, "method=full", "zero=stage2", "training.micro_batch=4"),
    "zero3-full": (*H200, QWEN, "method=full", "zero=stage3", "training.micro_batch=4"),
    "zero3-lora": (*H200, LLAMA, "method=lora", "zero=stage3", "training.micro_batch=4", CHECKPOINTED),
    "zero2-lora": (*H200, LLAMA, "method=lora", "zero=stage2", "training.micro_batch=4"),
    "zero2-full-offloaded": (
        *(*H200, QWEN, "method=full", "zero=stage2", "training.micro_batch=2"),
        "offload.optimizer=cpu",
    ),
    "zero3-full-limited": (*L4, QWEN, "method=full", "zero=stage3", "training.micro_batch=4"),
    "zero3-full-accumulated": (
        *(*H200, QWEN, "method=full", "zero=stage3", "training.micro_batch=2"),
        "training.grad_accum=2",
    ),
}
"""Job -> overrides; the most telling ones first, as a slow machine may not come to the last."""
WIDE = ("hardware=h100", "hardware.gpus_per_node=8", "zero=stage3", "training.micro_batch=1")
ALONE = {
    "70b-full-rank-0-of-64": (
        *(*WIDE, "hardware.nodes=8", "model=llama3_1_70b", "method=full", CHECKPOINTED),
        *("--rank", "0"),
    ),
    "7b-lora-rank-5-of-8": (*WIDE, "model=llama2_7b", "method=lora", "--rank", "5"),
    "search-micro-batch": (*L4, QWEN, "method=lora", "zero=stage2", "--search", "micro_batch"),
    "search-limit": (
        *H200,
        QWEN,
        "method=full",
        "zero=stage2",
        "training.micro_batch=4",
        "--search",
        "limit",
    ),
}
NO_STEP = ("model loaded", "engine started")


def shared(outputs: Path) -> list[str]:
    """What all jobs have in common, before what is their own."""
    return [
        *("model.weights=random", "data.name=words", f"data.train={rows_file(outputs)}", "data.heldout=null"),
        *(
            f"data.max_length={LENGTH}",
            "data.train_on_prompt=true",
            "training.evaluate=false",
            "offload=none",
        ),
        *("training.max_steps=3", "training.grad_accum=1", "training.gradient_checkpointing=false"),
        *("training.learning_rate=1e-6", "steps=[train]", "name=dryrun_check", f"paths.outputs={outputs}"),
    ]


def call(verb: str, *arguments: str, gpu: int | None = None) -> dict[str, Any]:
    """Run a command with `--json`; its error where it fails."""
    env = dict(os.environ) if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    command = [sys.executable, "-m", "llmsys_exp", verb, *arguments, "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        told, log = process.communicate(timeout=ONE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it ends its workers
        process.communicate()
        return {"error": f"not done after {ONE_S} s"}
    try:
        return json.loads(told)
    except ValueError:
        return {"error": (log.strip() or told.strip())[-800:]}


def real(outputs: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Train on both GPUs, and return what rank 0 held."""
    found = call("train", *shared(outputs), *overrides, "gate=off")
    if "folder" not in found:
        return {"error": found.get("error", "no run folder")}
    told = json.loads((Path(found["folder"]) / "results" / "train.json").read_text())
    memory = told["memory_per_rank"][0]
    peaks = {one["phase"]: one["peak_allocated_bytes"] for one in memory["phases"]}
    return {
        "load": peaks["model loaded"],
        "engine start": peaks["engine started"],
        "steps": max(size for name, size in peaks.items() if name not in NO_STEP),
        "reserved": memory["largest"]["peak_reserved_bytes"],
        "device": memory["largest"]["device_used_bytes"],
    }


def dry(outputs: Path, overrides: tuple[str, ...], gpu: int) -> dict[str, Any]:
    """Dry-run on one GPU; figures of both tiers."""
    found = call("plan", *shared(outputs), *overrides, "--tier", "dryrun", gpu=gpu)
    if "dryrun" not in found:
        return {"error": found.get("error", "no dry run")}
    told, said = found["dryrun"], found["forecast"]
    peaks = {name: one["peak_allocated_gib"] for name, one in told["phases"].items()}
    return {
        "load": _bytes(peaks.get("load")),
        "engine start": _bytes(peaks.get("engine start")),
        "steps": _bytes(told["peak_allocated_gib"]),
        "reserved": _bytes(told["peak_reserved_gib"]),
        "device": _bytes(told["device_used_gib"]),
        "formula": {
            "steps": _bytes(said["peak_allocated_gib"]),
            "reserved": _bytes(said["peak_reserved_gib"]),
        },
        "told": told,
    }


def _bytes(size_gib: float | None) -> float | None:
    return None if size_gib is None else size_gib * GIB


def main() -> None:
    """Real runs, dry runs, table."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OUT") or "outputs/dryrun_check")
    out.mkdir(parents=True, exist_ok=True)
    outputs, began = (out / "runs").absolute(), time.monotonic()
    write_rows(outputs)
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in (*BOTH, *ALONE)}
    for name, overrides in BOTH.items():
        if time.monotonic() - began < REAL_UNTIL_S:
            rows[name]["real"] = _timed(lambda overrides=overrides: real(outputs, overrides))
            print(f"{time.monotonic() - began:5.0f} s  real {name}", flush=True)
    waiting: Queue[tuple[str, tuple[str, ...]]] = Queue()
    big, *rest = [*ALONE.items()]
    for job in (big, *((name, BOTH[name]) for name in BOTH if "real" in rows[name]), *rest):
        waiting.put(job)
    lanes = [threading.Thread(target=_lane, args=(gpu, waiting, rows, outputs, began)) for gpu in range(GPUS)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    with (out / "dryrun_check.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.values())
    show(rows)


def _lane(
    gpu: int,
    waiting: Queue[tuple[str, tuple[str, ...]]],
    rows: dict[str, dict[str, Any]],
    outputs: Path,
    began: float,
) -> None:
    while time.monotonic() - began < START_UNTIL_S:
        try:
            name, overrides = waiting.get_nowait()
        except Empty:
            return
        rows[name]["dry"] = _timed(lambda overrides=overrides: dry(outputs, overrides, gpu))
        print(f"{time.monotonic() - began:5.0f} s  dry  {name} (GPU {gpu})", flush=True)


def _timed(work: Any) -> dict[str, Any]:
    began = time.monotonic()
    return {**work(), "seconds": round(time.monotonic() - began, 1)}


def show(rows: dict[str, dict[str, Any]]) -> None:
    """A line a figure: real, dry, their difference in MiB, and how far the formula is from the dry run."""
    print(
        f"\n{'job':26} {'figure':13} {'real GiB':>9} {'dry GiB':>9} {'dry-real MiB':>13} {'formula-dry':>12}"
    )
    for name, row in rows.items():
        there, here = row.get("real", {}), row.get("dry", {})
        for error in filter(None, (there.get("error"), here.get("error"))):
            print(f"{name:26} failed: {error}")
        for figure in ("load", "engine start", "steps", "reserved", "device"):
            told, was = here.get(figure), there.get(figure)
            if told is None:
                continue
            formula = here["formula"].get(figure)
            cells = [
                f"{was / GIB:9.3f}" if was else f"{'':9}",
                f"{told / GIB:9.3f}",
                f"{(told - was) / MIB:13.2f}" if was else f"{'':13}",
                f"{100 * (formula / told - 1):11.2f}%" if formula else "",
            ]
            print(f"{name:26} {figure:13} {' '.join(cells)}")
        if here.get("told"):
            ending = here["told"]["oom"] or here["told"]["search"] or "ok"
            print(f"{name:26} {row['dry']['seconds']:.0f} s: {json.dumps(ending)}")


if __name__ == "__main__":
    main()
