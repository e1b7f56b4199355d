"""ZeRO stages 0-3 x full, LoRA, QLoRA through `llmsys train`: do losses agree, and does the forecast hold?

    python -m benchmarks.training_matrix --out RESULT.jsonl                     one GPU, Llama-3.2-1B's shape
    python -m benchmarks.training_matrix --gpus 2 --out RESULT.jsonl            two GPUs
    python -m benchmarks.training_matrix --gpu cpu --model tiny --out R.jsonl   anywhere, to see that it runs

Weights are random and the tokenizer a stand-in, so nothing is downloaded. Half of the rows fill `--length` tokens
and half do not, so that batches are padded to the full length, as the forecast assumes. Jobs run `--at-once` at a
time, which leaves memory and losses alone; the first runs by itself, so that DeepSpeed's operators are compiled
once. The exit code is 1 when a job fails, when losses of one method differ between stages by more than
LOSS_TOLERANCE, or when memory is off by more than MEMORY_TOLERANCE. What the planner refuses is a row of its own
and no failure; on one GPU it is then run with the worker alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from llmsys_exp.config.plain import from_plain
from llmsys_exp.launch.ds_config import ds_config
from planner.units import GIB

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("full", "lora", "qlora")
STAGES = (0, 1, 2, 3)
LOSS_TOLERANCE = {"bf16": 0.01, "fp32": 0.001}
"""Largest relative difference of a step's loss from that of the first stage."""
MEMORY_TOLERANCE = 0.02
RATES = {"full": 1e-5, "lora": 1e-4, "qlora": 1e-4}
ROWS, WORDS, SHORT_WORDS = 96, 1200, 100
REFUSED = 2  # exit code of a user's mistake
TINY = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


def write_rows(file: Path) -> None:
    """Rows of which half are too long and are cut to the full length, half short: batches carry a mask."""
    words, pick = ("lamp", "chair", "desk", "red", "blue", "two", "three", "please"), random.Random(1)
    rows = [
        {
            "instruction": " ".join(pick.choices(words, k=(WORDS, SHORT_WORDS)[number % 2])),
            "output": " ".join(pick.choices(words, k=8)),
        }
        for number in range(ROWS)
    ]
    file.write_text(json.dumps(rows), encoding="utf-8")


def overrides(args: argparse.Namespace, method: str, stage: int, work: Path) -> list[str]:
    """The command line of one job."""
    name = f"{method}_{stage}"
    if args.model == "tiny":
        model = ["model=local", f"model.path={work / 'tiny'}"]
    else:
        model = [f"model={args.model}"]
    return [
        *model, "model.weights=random", f"method={method}", f"zero=stage{stage}", "offload=none",
        f"hardware={args.gpu}", f"hardware.gpus_per_node={args.gpus}", f"name={name}",
        "data.name=words", f"data.train={work / 'rows.json'}",
        "data.heldout=null", f"data.max_length={args.length}", "data.train_on_prompt=true",
        f"training.dtype={args.dtype}", f"training.micro_batch={args.micro_batch}", "training.grad_accum=2",
        f"training.max_steps={args.steps}", "training.evaluate=false", "training.scheduler=constant",
        "training.warmup_ratio=0", f"training.learning_rate={RATES[method]}",
        "training.gradient_checkpointing=false", "steps=[train]", "gate=off", f"paths.outputs={work / 'runs'}",
        *args.more,
    ]  # fmt: skip


def run_job(args: argparse.Namespace, method: str, stage: int, work: Path) -> dict[str, Any]:
    """Run one job to its end and read what its run folder says."""
    row: dict[str, Any] = {"method": method, "stage": stage, "gpus": args.gpus, "dtype": args.dtype}
    command = [sys.executable, "-m", "llmsys_exp", "train", *overrides(args, method, stage, work)]
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, env=os.environ.copy()
    )
    row["seconds"] = round(time.monotonic() - began, 1)
    folders = sorted((work / "runs" / f"{method}_{stage}").glob("*/manifest.json"))
    if done.returncode or not folders:
        text = (done.stderr.strip() or done.stdout.strip())[-800:]
        started = any((work / "runs" / f"{method}_{stage}").glob("*"))
        refused = done.returncode == REFUSED and not started
        return row | {"status": "refused" if refused else "failed", "reason": text}
    folder = folders[-1].parent
    memory = {one["name"]: one for one in json.loads(folders[-1].read_text())["measured"]["rows"]}
    shown = {
        name: {"planned_bytes": one["planned_bytes"], "measured_bytes": one["measured_bytes"]}
        for name, one in memory.items()
    }
    return row | {"status": "ok", "losses": losses_of(folder), "memory": shown}


def run_unplanned(args: argparse.Namespace, method: str, stage: int, work: Path) -> dict[str, Any]:
    """Run what the planner refuses with the worker alone, in a copy of the run folder of another stage."""
    row: dict[str, Any] = {"method": method, "stage": stage, "gpus": args.gpus, "dtype": args.dtype}
    planned = sorted((work / "runs").glob(f"{method}_*/*/manifest.json"))
    if args.gpus != 1 or not planned:
        return row | {"status": "refused", "reason": "needs one GPU and another stage of the method"}
    job = json.loads((planned[0].parent / "job.json").read_text())
    job["config"]["zero"]["stage"] = stage
    folder = work / "unplanned" / f"{method}_{stage}"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    settings = ds_config(from_plain(job["config"]), world_size=1, device=job["resolved"]["device"])
    (folder / "ds_config.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "llmsys_exp.workers.train", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        return row | {"status": "failed", "reason": (done.stdout.strip() + done.stderr.strip())[-800:]}
    train = json.loads((folder / "results" / "train.json").read_text())
    peaks = [one.get("peak_allocated_bytes", 0) for one in train["memory_per_rank"][0]["phases"]]
    return row | {"status": "ok", "planned": False, "losses": losses_of(folder), "measured_bytes": max(peaks)}


def losses_of(folder: Path) -> list[float]:
    """The loss of each step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [one["train/loss"] for one in lines if "train/loss" in one]


def loss_difference(losses: list[float], of: list[float]) -> float:
    """Largest relative difference, step by step."""
    return max(abs(a / b - 1) for a, b in zip(losses, of, strict=True))


def judge(rows: list[dict[str, Any]], dtype: str) -> list[str]:
    """Add each row's differences, and name what is out of tolerance."""
    problems = [
        f"{one['method']} {one['stage']}: {one['reason']}" for one in rows if one["status"] == "failed"
    ]
    first: dict[str, list[float]] = {}
    for row in (one for one in rows if one["status"] == "ok"):
        name = f"{row['method']} stage {row['stage']}"
        row["loss_difference"] = loss_difference(
            row["losses"], first.setdefault(row["method"], row["losses"])
        )
        if row["loss_difference"] > LOSS_TOLERANCE[dtype]:
            problems.append(f"{name}: losses differ by {row['loss_difference']:.2%}")
        peak = row.get("memory", {}).get("peak allocated")
        if peak is not None:
            row["memory_difference"] = peak["measured_bytes"] / peak["planned_bytes"] - 1
            if abs(row["memory_difference"]) > MEMORY_TOLERANCE:
                problems.append(f"{name}: allocated {row['memory_difference']:+.1%} of the forecast")
    return problems


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text."""
    lines = [f"{'job':<14} {'losses':<58} {'differ':>8} {'allocated GiB':>24} {'reserved GiB':>24}"]
    for row in rows:
        name = f"{row['method']} {row['stage']}"
        if row["status"] != "ok":
            lines.append(f"{name:<14} {row['status']}: {' '.join(row['reason'].split())[:140]}")
            continue
        losses = " ".join(f"{one:.4f}" for one in row["losses"])[:58]
        cells = [
            _memory_cell(row.get("memory", {}).get(f"peak {kind}")) for kind in ("allocated", "reserved")
        ]
        lines.append(f"{name:<14} {losses:<58} {row['loss_difference']:>8.3%} {cells[0]:>24} {cells[1]:>24}")
    return "\n".join(lines)


def _memory_cell(figure: dict[str, int] | None) -> str:
    if figure is None:
        return "-"
    planned, measured = figure["planned_bytes"], figure["measured_bytes"]
    return f"{planned / GIB:.3f} -> {measured / GIB:.3f} {measured / planned - 1:+.1%}"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="llama3_2_1b", help="option of conf/model, or tiny")
    parser.add_argument("--gpu", default="h200", help="option of conf/hardware")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--stages", nargs="+", type=int, default=list(STAGES), choices=STAGES)
    parser.add_argument("--dtype", default="bf16", choices=tuple(LOSS_TOLERANCE))
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True, help="JSONL, one row a job")
    parser.add_argument("--more", nargs="*", default=[], help="overrides added to every job")
    return parser.parse_args(arguments)


def main() -> int:
    """Run all jobs, write the rows, print the table."""
    args = parse()
    jobs = [(method, stage) for method in args.methods for stage in args.stages]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "tiny").mkdir()
        (work / "tiny" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
        write_rows(work / "rows.json")
        rows = [run_job(args, *jobs[0], work)]
        print(json.dumps(rows[0]), flush=True)
        with ThreadPoolExecutor(args.at_once) as pool:
            for row in pool.map(lambda job: run_job(args, *job, work), jobs[1:]):
                print(json.dumps(row), flush=True)
                rows.append(row)
        for row in [one for one in rows if one["status"] == "refused"]:
            rows.append(run_unplanned(args, row["method"], row["stage"], work))
            print(json.dumps(rows[-1]), flush=True)
    problems = judge(rows, args.dtype)
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(table(rows))
    for problem in problems:
        print(f"out of tolerance: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
