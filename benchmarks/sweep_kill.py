"""Kill a sweep at random moments and resume it: is every point done once, and the ledger readable each time?

    python benchmarks/sweep_kill.py [--points 60] [--kills 20] [--seed 1] [--search]

Jobs go through the same code as real ones (ledger, lease, runner, `llmsys_exp.sweeps.running.job`); only the verb is
replaced by one whose worker takes a fraction of a second. SIGKILL goes to the runner, to a job, to its worker,
or to runner and jobs at once. With `--search` the points are those that Optuna suggests while it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from llmsys_exp.runs.folder import create_run_folder
from llmsys_exp.runs.lock import locked
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep, open_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, RUNNING
from llmsys_exp.sweeps.ledger.lines import decode
from llmsys_exp.sweeps.ledger.settle import AGAIN, reopen
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.points.sweep_file import sweep_of
from llmsys_exp.sweeps.running import job, start
from llmsys_exp.sweeps.running.lease import leases_here
from llmsys_exp.sweeps.running.processes import TAG
from llmsys_exp.sweeps.running.runner import Runner, RunOptions
from llmsys_exp.sweeps.search.supply import Supply

HERE = str(Path(__file__).absolute())
WORKER = """
import os, sys, time
log = os.open("work.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, f"{sys.argv[1]} begin {time.time()}\\n".encode())
time.sleep(0.15)
os.write(log, f"{sys.argv[1]} end {time.time()}\\n".encode())
"""
RATE = "training.learning_rate"
SEARCH = {
    "search": {
        RATE: {"low": 1e-6, "high": 1e-2, "log": True},
        "training.micro_batch": {"low": 1, "high": 64},
        "data.max_length": {"low": 128, "high": 2048},
    },
    "objective": "evaluation.loss",
}
"""About one suggestion in two does not fit the card, and there are too many to list."""
BASE = ("experiment=quickstart", "hardware=v100_16gb")
VICTIMS = ("runner", "job", "worker", "runner and jobs")
OF_RAY = ("Ray's worker",)


def work(arguments: list[str]) -> int:
    """Be the verb: make a run folder, have a worker do the work, and write the manifest last."""
    number = os.environ[TAG].rpartition("/")[2]
    paths = create_run_folder(Path("out"), "kill", f"{int(number):08x}")
    worker = subprocess.Popen([sys.executable, "-S", "-c", WORKER, number], start_new_session=True)
    if worker.wait() != 0:
        return 1
    chosen = dict(text.split("=", 1) for text in arguments)
    loss = abs(math.log10(float(chosen.get(RATE, "1e-4"))) + 4)
    manifest = {"schema_version": 1, "metrics": {"after": {"loss": loss}}}
    paths.manifest.write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return 0


def be_job(arguments: list[str]) -> int:
    module = types.ModuleType("llmsys_exp.cli.train")
    module.run = work  # type: ignore[attr-defined]
    sys.modules["llmsys_exp.cli.train"] = module
    return job.main(arguments)


def be_runner(folder: str) -> int:
    real = start.job_command
    start.job_command = lambda *asked: [sys.executable, HERE, "--job", *real(*asked)[3:]]
    paths, sweep = open_sweep(Path(folder))
    with locked(paths.lock):
        reopen(sweep.ledger(paths), AGAIN | {"other"})
        needs = lambda overrides: 1  # noqa: E731
        runner = Runner(paths, sweep, RunOptions(jobs=2), leases=leases_here(), needs=needs, say=print)
        runner.supply = None if sweep.search is None else Supply(sweep, print)
        runner.run()
    return 0


def be_ray_driver(folder: str, address: str) -> int:
    from llmsys_exp.sweeps.ray import driver
    from llmsys_exp.sweeps.ray.cluster import connected
    from llmsys_exp.sweeps.ray.options import RayOptions

    here = HERE

    def run_point(*asked):
        from llmsys_exp.sweeps.ray import task
        from llmsys_exp.sweeps.running import start

        task.job_command = lambda *of: [sys.executable, here, "--job", *start.job_command(*of)[3:]]
        return task.run_point(*asked)

    driver.run_point = run_point
    paths, sweep = open_sweep(Path(folder))
    options = RayOptions(address, num_cpus=1)
    with locked(paths.lock), connected(options) as where:
        (paths.folder / "ray").mkdir(exist_ok=True)
        reopen(sweep.ledger(paths), AGAIN | {"other"})
        driver.RayRunner(paths, sweep, RunOptions(jobs=2), ray_options=options, say=print).run(where)
    return 0


class Drill:
    """One sweep, killed and resumed."""

    def __init__(self, paths: SweepPaths, sweep: Sweep, chance: random.Random, ray: str | None) -> None:
        self.paths, self.sweep, self.chance, self.ray = paths, sweep, chance, ray
        self.victims = VICTIMS if ray is None else (*VICTIMS, *OF_RAY)
        self.kills: Counter[str] = Counter()
        self.reads = 0
        self._runner: subprocess.Popen[bytes] | None = None

    def kill_once(self) -> bool:
        """Start a runner unless one is at work, wait a moment, and kill; False when all is done by then."""
        self._resume()
        victim = self.chance.choice(self.victims)
        time.sleep(self.chance.uniform(0.05, 1.2))
        running: list[int] = []
        while victim != "runner" and not running:
            running = [now.fields["pid"] for now in self.states().values() if now.state == RUNNING]
            if self.is_done():
                return False
            self._resume()
        assert self._runner is not None
        if "runner" in victim:
            self._runner.kill()
            self._runner.wait()
        if victim == "job":
            _kill(self.chance.choice(running))
        elif victim == "worker":
            for child in _children(self.chance.choice(running)):
                _kill(child)
        elif victim in OF_RAY:
            _kill_above(self.chance.choice(running))
        elif victim == "runner and jobs":
            for pid in running:
                _kill(pid)
        self.kills[victim] += 1
        self.states()
        return True

    def finish(self) -> int:
        """Resume until nothing is left; return how often that took."""
        for attempt in range(1, 6):
            self._resume()
            assert self._runner is not None
            self._runner.wait(timeout=900)
            if self.is_done():
                return attempt
        raise SystemExit(f"not done after five times: {self.states()}")

    def is_done(self) -> bool:
        states = self.states()
        return len(states) == self.sweep.expected and all(now.state == DONE for now in states.values())

    def states(self):
        """Read the ledger afresh: this raises where it is damaged."""
        self.reads += 1
        return self.sweep.ledger(self.paths).states()

    def _resume(self) -> None:
        if self._runner is None or self._runner.poll() is not None:
            asked = ["--runner"] if self.ray is None else ["--ray-driver", self.ray]
            command = [sys.executable, HERE, *asked, str(self.paths.folder)]
            with self.paths.log.open("ab") as log:
                self._runner = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def check(paths: SweepPaths, points: int) -> dict[str, int]:
    """Count what must be one for each point, and what may be more."""
    lines = [decode(line) for line in paths.ledger.read_bytes().splitlines()]
    assert all(lines), "every line of the ledger is whole"
    done = Counter(line["point"] for line in lines if line and line.get("state") == DONE)
    complete = Counter(
        int(file.parent.name.split("-")[5], 16) for file in Path("out/kill").glob("*/manifest.json")
    )
    expected = dict.fromkeys(range(1, points + 1), 1)
    assert dict(done) == expected, f"done in the ledger: {done}"
    assert dict(complete) == expected, f"complete run folders: {complete}"
    params = Counter(json.dumps(line["added"]["params"]) for line in lines if line and "added" in line)
    assert not params or (len(params) == points and set(params.values()) == {1}), (
        "each point is suggested once"
    )
    begun = Counter(line["state"] for line in lines if line and "state" in line)
    rejected = sum("rejected" in line for line in lines if line)
    return {
        "lines": len(lines),
        "rejected": rejected,
        "overlaps": overlaps(),
        "lost": begun["lost"],
        "failed": begun["failed"],
    }


def overlaps() -> int:
    """Count workers that began while another one of the same point was still at work."""
    open_at: dict[str, float] = {}
    found = 0
    for line in Path("work.txt").read_text(encoding="ascii").splitlines():
        number, what, at = line.split()
        if what == "end":
            open_at.pop(number, None)
        else:
            # a worker that was killed never ends: it was at work for 0.15 s at most
            found += number in open_at and float(at) - open_at[number] < 0.1
            open_at[number] = float(at)
    return found


def main() -> int:
    if sys.argv[1:2] == ["--job"]:
        return be_job(sys.argv[2:])
    if sys.argv[1:2] == ["--runner"]:
        return be_runner(sys.argv[2])
    if sys.argv[1:2] == ["--ray-driver"]:
        return be_ray_driver(sys.argv[3], sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", default=None, metavar="HOST:PORT")
    for name, value in (("--points", 60), ("--kills", 20), ("--seed", 1)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--search", action="store_true")
    asked = parser.parse_args()
    os.chdir(tempfile.mkdtemp(prefix="sweep-kill-"))
    listed = [Point(number, f"{number:016x}", (f"seed={number}",)) for number in range(1, asked.points + 1)]
    sought = sweep_of({**SEARCH, "trials": asked.points, "seed": asked.seed}, "the drill").search
    points = sought.content if asked.search and sought is not None else listed
    base = BASE if asked.search else ()
    paths, sweep = create_sweep(Path("out"), "kill", "train", base=base, points=points, options={})
    drill = Drill(paths, sweep, random.Random(asked.seed), asked.ray)
    began = time.monotonic()
    while sum(drill.kills.values()) < asked.kills and drill.kill_once():
        pass
    resumes = drill.finish()
    figures = {
        "points": asked.points,
        "kills": dict(drill.kills),
        "done_once": asked.points,
        "ledger_reads": drill.reads,
        "last_resumes": resumes,
        **check(paths, asked.points),
        "seconds": round(time.monotonic() - began, 1),
        "folder": str(Path.cwd()),
    }
    print(json.dumps(figures, indent=2))
    return 0


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_above(pid: int) -> None:
    """Kill the process of Ray's that a job was started by."""
    with suppress(psutil.Error):
        for process in psutil.Process(pid).parents():
            if process.cmdline()[0].startswith("ray::"):
                process.kill()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


if __name__ == "__main__":
    sys.exit(main())
