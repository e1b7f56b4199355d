"""What a sweep adds to each job: the same jobs as plain commands, through `llmsys sweep`, and through Hydra's -m.

    python benchmarks/sweep_overhead.py [--jobs 5] [--rounds 3]

Jobs are `llmsys infer` from composition to manifest, with an interpreter for its worker that answers at once.
Rounds take turns, so that other load on the machine meets all ways alike; the figure is the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WORKER = """#!{python}
import json, sys
if sys.argv[1] == "-c" or "llmsys_exp.workers.convert" in sys.argv:
    sys.exit(0)
run = sys.argv[-1]
answer = json.dumps({{"index": 0, "input": "a", "output": "b"}})
for name in ("generations", "outputs"):
    open(f"{{run}}/{{name}}.jsonl", "w").write(answer + "\\n")
json.dump({{"prompts": 1}}, open(f"{{run}}/results/infer.json", "w"))
"""


def settings(folder: Path) -> list[str]:
    worker = folder / "worker"
    worker.write_text(WORKER.format(python=sys.executable), encoding="utf-8")
    worker.chmod(0o755)
    shared = ["hardware=cpu", "inference.prompts=shipped:data/prompts.json", f"launcher.python={worker}"]
    return [*shared, f"paths.outputs={folder}/out", "name=bench"]


def llmsys(*arguments: str, folder: Path) -> None:
    command = [sys.executable, "-m", "llmsys_exp", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)


def plain(shared: list[str], seeds: list[int], folder: Path) -> float:
    """Seconds a job when each is a command of its own."""
    began = time.perf_counter()
    for seed in seeds:
        llmsys("infer", *shared, f"seed={seed}", folder=folder)
    return (time.perf_counter() - began) / len(seeds)


def hydra(shared: list[str], seeds: list[int], folder: Path) -> float:
    """Seconds a job when Hydra's basic launcher runs all in one process (llmsys train -m)."""
    steps = ["steps=[infer]", f"seed={','.join(map(str, seeds))}"]
    began = time.perf_counter()
    llmsys("train", "-m", *shared, *steps, folder=folder)
    return (time.perf_counter() - began) / len(seeds)


def sweep(shared: list[str], seeds: list[int], folder: Path) -> float:
    """Seconds a job from the first to the last word of the ledger: without the sweep's own start."""
    llmsys("sweep", "run", "--verb", "infer", *shared, f"seed={','.join(map(str, seeds))}", folder=folder)
    made = max(folder.glob("out/bench/*/ledger.jsonl"), key=lambda path: path.stat().st_mtime)
    sweep_file = made.with_name("sweep.json")
    return (made.stat().st_mtime - sweep_file.stat().st_mtime) / len(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    ways: dict[str, Callable[[list[str], list[int], Path], float]] = {
        "plain command": plain,
        "llmsys sweep": sweep,
        "hydra basic launcher": hydra,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="sweep-overhead-") as scratch:
        folder = Path(scratch)
        shared = settings(folder)
        for number in range(asked.rounds):
            seeds = list(range(number * asked.jobs, (number + 1) * asked.jobs))
            for name, way in ways.items():
                found[name].append(way(shared, seeds, folder))
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    least = {name: round(min(values), 3) for name, values in found.items()}
    print(json.dumps({"seconds_a_job": medians, "least": least, "all": found}, indent=2))


if __name__ == "__main__":
    main()
