"""What launching adds to each job beyond its program's own start, beside Hydra's basic and joblib launchers.

    python benchmarks/sweep_overhead.py [--jobs 8] [--rounds 3] [--limit 0.3]

Two programs: `llmsys infer`, from composition to manifest with a worker that answers at once, and a bare Hydra
program. Each way runs two jobs and `--jobs`, and the difference is what a job takes, in seconds of wall and of
processor time; ways take turns, and the least of the rounds counts. Two jobs at a time go through joblib and
the launcher plug-in, one through all else. joblib is measured where `pip install hydra-joblib-launcher` is.
The exit code is 1 when `llmsys sweep` or the plug-in adds more processor time to a job than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
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
PROGRAM = """
import hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config) -> float:
    return config.seed


if __name__ == "__main__":
    main()
"""
PLAIN_LLMSYS, PLAIN_HYDRA = "llmsys infer, a command each", "bare Hydra program, a command each"
SWEEP, PLUG_IN = "llmsys sweep", "hydra/launcher=llmsys_lease, 2 at a time"
FEWEST = 2
"""One job would be no sweep."""
Way = Callable[[list[int]], list[list[str]]]
"""From seeds to the commands that run a job for each."""


def ways(folder: Path) -> dict[str, Way]:
    """Return what is compared; the files that it takes are written here."""
    worker = folder / "worker"
    worker.write_text(WORKER.format(python=sys.executable), encoding="utf-8")
    worker.chmod(0o755)
    (folder / "app.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "conf").mkdir()
    (folder / "conf/config.yaml").write_text("seed: 0\n", encoding="utf-8")
    llmsys, app = [sys.executable, "-m", "llmsys_exp"], [sys.executable, "app.py"]
    shared = ["hardware=cpu", "inference.prompts=shipped:data/prompts.json", f"launcher.python={worker}"]
    shared += [f"paths.outputs={folder}/out", "name=bench"]
    infer = [*llmsys, "train", "-m", "steps=[infer]", *shared]
    lease = [*app, "-m", "hydra/launcher=llmsys_lease", "hydra.launcher.jobs=2"]
    joblib = [*app, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    found: dict[str, Way] = {
        PLAIN_LLMSYS: lambda seeds: [[*llmsys, "infer", *shared, f"seed={seed}"] for seed in seeds],
        SWEEP: lambda seeds: [[*llmsys, "sweep", "run", "--verb", "infer", *shared, swept(seeds)]],
        "llmsys train -m, in one process": lambda seeds: [[*infer, swept(seeds)]],
        PLAIN_HYDRA: lambda seeds: [[*app, f"seed={seed}"] for seed in seeds],
        PLUG_IN: lambda seeds: [[*lease, swept(seeds)]],
        "Hydra's basic launcher, in one process": lambda seeds: [[*app, "-m", swept(seeds)]],
    }
    if find_spec("hydra_plugins.hydra_joblib_launcher"):
        found["Hydra's joblib launcher, 2 processes for all"] = lambda seeds: [[*joblib, swept(seeds)]]
    return found


def swept(seeds: list[int]) -> str:
    return f"seed={','.join(map(str, seeds))}"


def seconds(commands: list[list[str]], folder: Path) -> tuple[float, float]:
    """Wall and processor time of commands one after another."""
    before, began = os.times(), time.perf_counter()
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def measure(jobs: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Wall and processor time that one job more takes, by way."""
    seeds = count()
    least: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="sweep-overhead-") as scratch:
        folder = Path(scratch)
        compared = ways(folder)
        for _ in range(rounds):
            for name, way in compared.items():
                for number in (FEWEST, jobs):
                    spent = seconds(way([next(seeds) for _ in range(number)]), folder)
                    before = least.get((name, number), list(spent))
                    least[name, number] = [min(pair) for pair in zip(before, spent, strict=True)]
    more = jobs - FEWEST
    return {
        name: (
            (least[name, jobs][0] - least[name, FEWEST][0]) / more,
            (least[name, jobs][1] - least[name, FEWEST][1]) / more,
        )
        for name in compared
    }


def main() -> int:
    """Measure, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.3, help="processor seconds a job")
    asked = parser.parse_args()
    found = measure(asked.jobs, asked.rounds)
    print(f"{'a job takes':46} {'wall s':>8} {'CPU s':>8} {'beside plain':>13}")
    added: dict[str, float] = {}
    for name, (wall_s, cpu_s) in found.items():
        plain_s = found[PLAIN_LLMSYS if "llmsys" in name and name != PLUG_IN else PLAIN_HYDRA][1]
        added[name] = cpu_s - plain_s
        print(f"{name:46} {wall_s:8.3f} {cpu_s:8.3f} {added[name]:+8.3f} {cpu_s / plain_s:4.2f}x")
    print(json.dumps({name: [round(value, 4) for value in pair] for name, pair in found.items()}))
    return int(max(added[SWEEP], added[PLUG_IN]) > asked.limit)


if __name__ == "__main__":
    sys.exit(main())
