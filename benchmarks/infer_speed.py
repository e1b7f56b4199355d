"""Total time of `llmsys infer` against two named rivals on the same prompts, lengths and engine arguments.

    python -m benchmarks.infer_speed --out RESULT.jsonl                  on an H200: SGLang, Qwen2.5-7B's shape, 805 prompts
    python -m benchmarks.infer_speed --device cpu --model tiny           anywhere: transformers, a tiny model, 32 prompts

Rivals: the course's plain loop of fixed batches, and SGLang's own offline benchmark. Weights are random; how many
tokens each answer gets is drawn once (log-normal) and forced on all. Seconds run from the first prompt handed over to
the last answer there, in ours on the disk too; loading and warming up come before and are told apart.
A loop that its limit ends counts by its tokens a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.infer_rivals import BENCH, LOOP, OURS
from benchmarks.infer_rivals.inputs import make_inputs
from benchmarks.infer_rivals.job import CPU_ARGUMENTS, CUDA_ARGUMENTS, Job
from benchmarks.infer_rivals.programs import Program, make_program

ROOT = Path(__file__).resolve().parents[1]
GOALS = {LOOP: 1.5, BENCH: 0.98}
"""Least ratio of our tokens a second to theirs."""
PACKAGES = ("torch", "transformers", "sglang", "sglang-kernel", "flashinfer-python", "triton")
GRACE_S = 20
Row = dict[str, Any]


def measure(program: Program, job: Job, *, number: int, limit_s: float) -> list[Row]:
    """Run one program to its end, in a process group of its own; a row for each of its measurements."""
    log = Path(job.work) / f"{program.name}{number}.log"
    began = time.monotonic()
    code = run_group(program.command, log, job, limit_s=limit_s)
    wall_s = time.monotonic() - began
    row = {"program": program.name, "round": number, "wall_s": wall_s, "command": shlex.join(program.command)}
    lines = log.read_text(errors="replace").strip().splitlines()
    said = " / ".join(lines[-3:])[-600:]
    try:
        found = program.figures()
    except (OSError, KeyError, ValueError, IndexError):
        found = []
    if not found or (
        code != 0 and program.name != LOOP
    ):  # what a loop had done when it was ended still counts
        why = f"ended by its limit of {limit_s:.0f} s" if code is None else f"ended with {code}"
        return [{**row, "status": "failed", "log": f"{why}: {said}"}]
    return [
        {**row, "status": "ok", **one, "tokens_per_s": one["output_tokens"] / one["seconds"]} for one in found
    ]


def run_group(command: list[str], log: Path, job: Job, *, limit_s: float) -> int | None:
    """Return a command's exit code; None where the limit ended it. Nothing of its group is left."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                   "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    if job.device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=ROOT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # ours ends its worker and writes what it knows
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def median_speed(rows: list[Row], name: str, batch: int | None = None) -> float | None:
    """Median tokens a second over the rounds of a program, and of one batch size where it has several."""
    speeds = [row["tokens_per_s"] for row in rows
              if row["program"] == name and row["status"] == "ok" and row.get("batch") == batch]  # fmt: skip
    return statistics.median(speeds) if speeds else None


def ratios(rows: list[Row]) -> dict[str, float]:
    """Return our speed over that of each rival, by what the table calls it."""
    mine = median_speed(rows, OURS)
    rivals = {label(row): (row["program"], row.get("batch")) for row in rows if row["program"] != OURS}
    found: dict[str, float] = {}
    for name, which in rivals.items():
        theirs = median_speed(rows, *which)
        if mine and theirs:
            found[name] = mine / theirs
    return found


def label(row: Row) -> str:
    """What the table calls a row."""
    return f"{row['program']} {row['batch']}" if row.get("batch") else row["program"]


def misses(rows: list[Row], job: Job) -> list[str]:
    """Say what falls short of the goals, and which program did not do the work."""
    wanted = {"prompts": job.prompts, "output_tokens": sum(row["max_new_tokens"] for row in job.rows())}
    found: list[str] = []
    for row in rows:
        if row["status"] != "ok":
            found.append(f"{label(row)} failed: {row['log']}")
        elif row["program"] != LOOP or row["prompts"] == job.prompts:  # a loop may be cut
            found += [f"{label(row)}: {key} {row[key]} and not {value}" for key, value in wanted.items()
                      if row[key] != value]  # fmt: skip
    for name, ratio in ratios(rows).items():
        goal = GOALS[name.split()[0]]
        if job.device == "cuda" and ratio < goal:
            found.append(f"{ratio:.3f} of {name}, wanted {goal}")
    return found


def show(rows: list[Row], job: Job) -> None:
    """Print the table."""
    lengths = [row["max_new_tokens"] for row in job.rows()]
    print(f"\n{job.model}, {job.engine} on {job.device}: {len(lengths)} prompts, {sum(lengths)} new tokens, "
          f"mean {statistics.mean(lengths):.0f}, median {statistics.median(lengths):.0f}, longest {max(lengths)}")  # fmt: skip
    print(
        f"{'program':18}{'seconds':>9}{'prompts':>9}{'tokens/s':>10}{'all, s':>9}{'before, s':>11}{'ours / it':>11}"
    )
    compared = ratios(rows)
    for row in rows:
        if row["status"] != "ok":
            print(f"{label(row):18}failed: {row['log']}")
            continue
        whole = sum(lengths) / row["tokens_per_s"]
        before = row.get("told", {}).get("time_s") or {}
        start = sum(before.get(key) or 0 for key in ("load", "warm_up")) or row["wall_s"] - row["seconds"]
        ratio = f"{compared[label(row)]:11.3f}" if label(row) in compared else ""
        print(f"{label(row):18}{row['seconds']:9.1f}{row['prompts']:9}{row['tokens_per_s']:10.0f}{whole:9.1f}"
              f"{start:11.1f}{ratio}")  # fmt: skip
    print("all: seconds for all prompts at that speed; before: loading and warm-up, as told by the program, "
          "else all else it did")  # fmt: skip


def versions(python: str) -> dict[str, str]:
    """What is installed for an interpreter."""
    look = (
        "import json, sys; from importlib.metadata import distributions; "
        "found = {one.metadata['Name']: one.version for one in distributions()}; "
        "print(json.dumps({name: found.get(name, 'none') for name in sys.argv[1:]}))"
    )
    told = subprocess.run([python, "-c", look, *PACKAGES], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--engine", choices=("sglang", "transformers"), help="cuda: sglang; cpu: transformers"
    )
    parser.add_argument("--model", default="qwen2_5_7b", help="row of the planner's model table, or tiny")
    parser.add_argument("--prompts", type=int, help="how many of the 805; on the CPU 32")
    parser.add_argument("--programs", nargs="+", choices=(LOOP, OURS, BENCH), default=[LOOP, OURS, BENCH])
    parser.add_argument("--batches", type=int, nargs="+", help="sizes of the plain loop: 64 8; on the CPU 8")
    parser.add_argument(
        "--loop-limit-s", type=float, default=50, help="begin no further batch of a size after that"
    )
    parser.add_argument(
        "--median-tokens", type=float, help="of an answer: 300, which makes a mean of 340; on the CPU 30"
    )
    parser.add_argument("--spread", type=float, default=0.5, help="of the lengths' natural logarithm")
    parser.add_argument("--most-tokens", type=int, default=1024)
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="of the engine, for all"
    )
    parser.add_argument(
        "--sglang-python", default=sys.executable, help="of the environment that holds SGLang"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="of ours and SGLang's benchmark, in turn; medians count"
    )
    parser.add_argument(
        "--limit-s", type=float, default=540, help="of the whole; nothing is started after it"
    )
    parser.add_argument("--start-limit-s", type=float, default=200, help="of a program before it answers")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--work", help="folder for model, runs and logs; kept")
    parser.add_argument("--out", help="JSONL with every measurement; appended to")
    return parser.parse_args()


def make_job(options: argparse.Namespace) -> Job:
    """Return what all programs get."""
    on_gpu = options.device == "cuda"
    engine = options.engine or ("sglang" if on_gpu else "transformers")
    chosen = dict(CUDA_ARGUMENTS if on_gpu else CPU_ARGUMENTS) if engine == "sglang" else {}
    for text in options.argument:
        key, _, value = text.partition("=")
        try:
            chosen[key] = json.loads(value)
        except json.JSONDecodeError:
            chosen[key] = value
    return Job(
        work=str(Path(options.work or tempfile.mkdtemp(prefix="infer_speed_")).absolute()),
        model=options.model,
        engine=engine,
        device=options.device,
        prompts=options.prompts or (805 if on_gpu else 32),
        seed=options.seed,
        loop_batches=tuple(options.batches or ((64, 8) if on_gpu else (8,))),
        loop_limit_s=options.loop_limit_s,
        median_tokens=options.median_tokens or (300 if on_gpu else 30),
        spread=options.spread,
        most_tokens=options.most_tokens,
        arguments=chosen,
        sglang_python=options.sglang_python,
    )


def main() -> int:
    """Measure every program, print the table, and say what falls short."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a program at work is ended, too
    job = make_job(options)
    make_inputs(job)
    job.write(Path(job.work) / "job.json")
    programs = [name for name in options.programs if name != BENCH or job.engine == "sglang"]
    rows: list[Row] = []
    until = time.monotonic() + options.limit_s
    for number in range(options.rounds):
        for name in programs:
            left_s = until - time.monotonic()
            if left_s <= 0 or (number and name == LOOP):
                continue
            work_s = len(job.loop_batches) * job.loop_limit_s if name == LOOP else job.loop_limit_s
            program = make_program(name, job, number=number)
            limit_s = min(left_s, options.start_limit_s + 2 * work_s)
            rows += measure(program, job, number=number, limit_s=limit_s)
            print(f"{name}: {rows[-1]['status']} after {rows[-1]['wall_s']:.0f} s", flush=True)
    show(rows, job)
    if options.out:
        about = {"job": json.loads((Path(job.work) / "job.json").read_text()), "versions": versions(job.python),
                 "ratios": ratios(rows), "benchmark": shlex.join(sys.argv)}  # fmt: skip
        with Path(options.out).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**row, **about}) + "\n" for row in rows)
    short = misses(rows, job)
    print("\n" + ("\n".join(f"short of the goal: {text}" for text in short) or "all goals are met"))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
