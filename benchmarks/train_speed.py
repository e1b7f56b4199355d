"""Tokens a second of llmsys' training worker against three named rivals, in one job on one device.

    python -m benchmarks.train_speed --out RESULT.jsonl                        on a GPU: LoRA and full, 1B shape
    python -m benchmarks.train_speed --device cpu --model tiny --timed 4       anywhere, to see that it runs

All programs get the same model folder, tokens in the same order, DeepSpeed configuration and steps; they are
started together and take turns (`train_rivals/turns.py`). A token is one that is not padding. The first turn
is left out, and in each turn the first steps. Ratios compare turns of the same round; the median is given.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.train_rivals import OURS, OURS_RECOMMENDED, RIVALS
from benchmarks.train_rivals.job import Job
from benchmarks.train_rivals.llmsys import ds_config_of
from benchmarks.train_rivals.turns import SOCKET_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
GIB = 1024**3
START_LIMIT_S, TURN_LIMIT_S = 300, 120
LOSS_TOLERANCE = 0.02
"""Relative, on the mean loss of the last turn, for programs that train on the same batches."""
GOALS = {"handwritten": 0.99, "hf_trainer": 1.0, "llama_factory": 1.0}
RECOMMENDED_GOAL = 1.2
PACKAGES = ("torch", "transformers", "deepspeed", "peft", "accelerate", "llamafactory", "trl", "liger-kernel")


@dataclass
class Program:
    """A rival's process, and what it has told."""

    name: str
    process: subprocess.Popen[bytes]
    line: Any
    log: Path
    turns: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""

    def hear(self) -> dict[str, Any]:
        """Return its next message; a program that ended or hangs is out."""
        try:
            text = self.line.readline()
        except (TimeoutError, OSError):
            text = ""
        if text:
            return json.loads(text)
        self.process.kill()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        self.failure = lines[-1][:300] if lines else "said nothing"
        return {}

    def say(self, text: str) -> None:
        """Send a line."""
        try:
            self.line.write(text + "\n")
            self.line.flush()
        except OSError:  # it has gone, and `hear` tells why
            return


def start(name: str, job: Job) -> Program:
    """Start one program; it stops before its first step."""
    ours, its = socket.socketpair()
    work = Path(job.work)
    log = work / f"{name}.log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"},
        "MASTER_PORT": str(port),
        SOCKET_VARIABLE: str(its.fileno()),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    if job.device == "cpu":
        environment |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train_rivals", name, str(work / "job.json")],
            env=environment, pass_fds=[its.fileno()], stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    its.close()
    ours.settimeout(START_LIMIT_S)
    return Program(name, process, ours.makefile("rw"), log)


def take_turns(programs: list[Program], options: argparse.Namespace, *, until: float) -> None:
    """Let one after the other run, round after round; the first round is not kept, late ones are left out.

    Each round begins with the next program: clocks and caches are not the same for the first and the last.
    """
    for number in range(options.rounds + 1):
        if time.monotonic() > until and number > 1:
            print(f"out of time after {number - 1} rounds", flush=True)
            break
        first = number % len(programs)
        for program in programs[first:] + programs[:first]:
            if program.failure:
                continue
            program.say(f"go {options.warm} {options.timed}")
            told = program.hear()
            if told and number:
                program.turns.append({**told, "round": number})
            if told:
                program.hear()  # ready again
    for program in programs:
        program.say("end")


def measure(job: Job, names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one method; a row a program."""
    file = Path(job.work) / "job.json"
    job.write(file)
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.train_rivals", "inputs", str(file)]
    subprocess.run(command, cwd=ROOT, check=True)
    job = job.with_ds_config(ds_config_of(job))
    job.write(file)
    print(f"{job.method}: inputs {time.monotonic() - began:.0f} s", flush=True)
    programs = [start(name, job) for name in names]
    try:
        for program in programs:
            program.hear()
        print(f"{job.method}: all started {time.monotonic() - began:.0f} s", flush=True)
        take_turns(programs, options, until=began + options.limit_s)
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()
    print(f"{job.method}: measured {time.monotonic() - began:.0f} s", flush=True)
    return [row_of(program, job) for program in programs]


def row_of(program: Program, job: Job) -> dict[str, Any]:
    """What one program did."""
    row: dict[str, Any] = {"method": job.method, "program": program.name, "model": job.model}
    row |= {"micro_batch": job.micro_batch, "device": job.device, "turns": program.turns}
    if program.failure or not program.turns:
        return row | {"status": "failed", "log": program.failure}
    tokens, positions = (sum(turn[key] for turn in program.turns) for key in ("tokens", "positions"))
    return row | {
        "status": "ok",
        "tokens_per_s": statistics.median(turn["tokens"] / turn["seconds"] for turn in program.turns),
        "step_s": statistics.median(turn["seconds"] / turn["steps"] for turn in program.turns),
        "padding": 1 - tokens / positions,
        "loss": statistics.mean(program.turns[-1]["losses"]),
        "peak_gib": max(turn["peak_allocated_bytes"] for turn in program.turns) / GIB,
    }


def ratio(ours: dict[str, Any], rival: dict[str, Any]) -> float:
    """Our tokens/s over the rival's, round by round; the median."""
    theirs = {turn["round"]: turn["tokens"] / turn["seconds"] for turn in rival["turns"]}
    pairs = [(turn["tokens"] / turn["seconds"], theirs.get(turn["round"])) for turn in ours["turns"]]
    return statistics.median(mine / his for mine, his in pairs if his)


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table of one method."""
    done = {row["program"]: row for row in rows if row["status"] == "ok"}
    ours = [name for name in (OURS, OURS_RECOMMENDED) if name in done]
    print(f"\n{rows[0]['method']}, {rows[0]['model']}, micro-batch {rows[0]['micro_batch']}")
    heads = "".join(f"{'vs ' + name:>24}" for name in done if name not in ours)
    print(f"{'program':20}{'tokens/s':>10}{'step ms':>9}{'padding':>9}{'peak GiB':>10}{'loss':>9}{heads}")
    for row in rows:
        if row["status"] != "ok":
            print(f"{row['program']:20}failed: {row['log']}")
            continue
        text = (
            f"{row['program']:20}{row['tokens_per_s']:10.0f}{1000 * row['step_s']:9.1f}{row['padding']:9.0%}"
        )
        text += f"{row['peak_gib']:10.2f}{row['loss']:9.4f}"
        if row["program"] in ours:
            text += "".join(f"{ratio(row, done[name]):24.3f}" for name in done if name not in ours)
        print(text)


def misses(rows: list[dict[str, Any]]) -> list[str]:
    """Say what falls short of the goals."""
    done = {row["program"]: row for row in rows if row["status"] == "ok"}
    found = [f"{row['program']} failed" for row in rows if row["status"] != "ok"]
    rivals = [name for name in GOALS if name in done]
    if OURS in done:
        for name in rivals:
            if ratio(done[OURS], done[name]) < GOALS[name]:
                found.append(f"{ratio(done[OURS], done[name]):.3f} of {name}, wanted {GOALS[name]}")
            off = abs(done[name]["loss"] / done[OURS]["loss"] - 1)
            if off > LOSS_TOLERANCE:
                found.append(f"loss of {name} is {100 * off:.1f} % off ours: not the same training")
    if OURS_RECOMMENDED in done and rivals:
        least = min(ratio(done[OURS_RECOMMENDED], done[name]) for name in rivals)
        if least < RECOMMENDED_GOAL:
            found.append(f"recommended settings reach {least:.3f}, wanted {RECOMMENDED_GOAL}")
    return found


def versions() -> dict[str, str]:
    """What is installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="llama3_2_1b", help="row of the planner's model table, or tiny")
    parser.add_argument("--methods", nargs="+", choices=("lora", "full"), default=["lora", "full"])
    parser.add_argument("--programs", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[16, 8], help="one for each method")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program that count")
    parser.add_argument("--warm", type=int, default=2, help="steps of a turn that do not count")
    parser.add_argument("--timed", type=int, default=12, help="steps of a turn that count")
    parser.add_argument("--limit-s", type=float, default=900.0, help="begin no further round after that")
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--work", help="folder for model, data and logs; kept")
    parser.add_argument("--out", help="JSONL with every turn; appended to")
    return parser.parse_args()


def main() -> int:
    """Measure every method, print a table for each, and say what falls short."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the programs are ended, too
    work = Path(options.work or tempfile.mkdtemp(prefix="train_speed_"))
    short: list[str] = []
    sizes = [*options.micro_batch, *options.micro_batch[-1:] * len(options.methods)]
    steps = (options.rounds + 1) * (options.warm + options.timed)
    for method, micro_batch in zip(options.methods, sizes, strict=False):
        folder = work / method
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(str(folder), options.model, method, options.device, micro_batch,
                  max_length=options.max_length, rows=(steps + 2) * micro_batch, max_steps=steps + 1)  # fmt: skip
        rows = measure(job, options.programs, options)
        show(rows)
        short += [f"{method}: {text}" for text in misses(rows)]
        if options.out:
            with Path(options.out).open("a") as file:
                file.writelines(json.dumps({**row, "versions": versions()}) + "\n" for row in rows)
    print("\n" + ("\n".join(f"short of the goal: {text}" for text in short) or "all goals are met"))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
