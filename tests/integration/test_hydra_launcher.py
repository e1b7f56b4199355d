"""`hydra/launcher=llmsys_lease` in a real Hydra program: own processes, shared leases, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmsys_exp.sweeps.running.lease import Leases, core_slots, runtime_folder

APP = Path(__file__).parents[1] / "hydra_app.py"


@pytest.fixture(autouse=True)
def leases_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    folder.mkdir()
    command = [
        sys.executable,
        str(APP),
        "-m",
        "hydra/launcher=llmsys_lease",
        "hydra.sweep.dir=out",
        *overrides,
    ]
    # a shell may have started us with interrupts ignored
    with_interrupts = f"import os, signal; signal.signal(2, signal.default_int_handler); os.execv({command[0]!r}, {command})"
    return subprocess.Popen(
        [sys.executable, "-c", with_interrupts],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read(folder: Path, name: str) -> dict[int, Any]:
    """What jobs have written, by their numbers."""
    return {int(file.parent.name): json.loads(file.read_text()) for file in folder.glob(f"out/*/{name}.json")}


def wait_for_begun(folder: Path, count: int) -> list[int]:
    """Return the processes of jobs that have begun, and of what they have started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = [file.read_text() for file in folder.glob("out/*/begun.json")]
        if len(files) == count and all(files):
            return [pid for text in files for pid in json.loads(text)]
        time.sleep(0.05)
    raise AssertionError("the jobs have not begun")


def are_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_jobs_run_apart_and_each_returns_in_its_place(tmp_path: Path):
    folder = tmp_path / "one"
    whats = ["ok", "fail", "odd", "killed", "function"]
    callback = "+hydra.callbacks.watch._target_=__main__.Watch"
    process = start(folder, f"what={','.join(whats)}", "number=21", "hydra.launcher.jobs=2", callback)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    returned = json.loads((folder / "returned.json").read_text())
    assert [row[0] for row in returned] == ["COMPLETED", "FAILED", "FAILED", "FAILED", "COMPLETED"]
    assert [row[1] for row in returned[:2]] == ["42", "unlucky 21"]
    assert "Odd cannot be handed back" in returned[2][1]
    assert "ended by SIGKILL" in returned[3][1]
    assert returned[4][1] == "None" and "The returned function cannot be handed back" in said
    assert [row[2][0] for row in returned] == [f"what={what}" for what in whats]
    assert "in main\n    raise ValueError" in said, "where a job failed is told"
    seen, told = read(folder, "seen"), read(folder, "callback")
    assert set(seen) == {0, 4} and set(told) == {0, 1, 2, 4}
    assert {one["type"] for one in seen.values()} == {"MULTIRUN"}
    assert len({one["MASTER_PORT"] for one in seen.values()} - {None}) == 2
    assert told[0]["greeting"] == f"hello from {process.pid}", "callbacks keep what they knew"
    assert seen[0]["group"] == told[0]["pid"] != process.pid
    assert len({one["pid"] for one in told.values()}) == 4, "no process is used again"
    assert all((folder / f"out/{number}/.hydra/config.yaml").is_file() for number in range(5))
    assert (folder / "out/0/hydra_app.log").is_file()


def test_two_programs_and_a_sweep_share_the_leases_of_the_machine(tmp_path: Path):
    slots = core_slots()
    # as `llmsys sweep` would: all but one core are leased
    lease = Leases(slots, runtime_folder()).acquire(len(slots) - 1)
    assert lease is not None
    asked = ["what=short", "number=1,2", f"hydra.launcher.jobs={len(slots)}"]
    programs = [start(tmp_path / name, *asked) for name in ("one", "two")]
    said = [program.communicate(timeout=120)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
    jobs = [*read(tmp_path / "one", "seen").values(), *read(tmp_path / "two", "seen").values()]
    assert [job["cores"] for job in jobs] == [[int(slots[-1].value)]] * 4
    jobs.sort(key=lambda job: job["began"])
    assert all(first["ended"] <= second["began"] for first, second in pairwise(jobs))
    lease.release()


def test_kill_9_of_the_program_ends_its_jobs_and_frees_their_leases(tmp_path: Path):
    process = start(tmp_path / "one", "what=slow", "number=1,2", "hydra.launcher.jobs=2")
    pids = wait_for_begun(tmp_path / "one", 2)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert are_gone(pids), "with what they had started in sessions of their own"
    slots = core_slots()
    assert Leases(slots, runtime_folder()).acquire(len(slots)) is not None


def test_interrupt_ends_jobs_and_all_they_started(tmp_path: Path):
    process = start(tmp_path / "one", "what=slow", "number=1,2", "hydra.launcher.jobs=2")
    pids = wait_for_begun(tmp_path / "one", 2)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert are_gone(pids)


def test_failure_ends_the_others_where_that_is_asked_and_a_late_job_ends(tmp_path: Path):
    both = ["hydra.launcher.fail_fast=true", "hydra.launcher.jobs=2"]
    fast = start(tmp_path / "fast", "what=slow,fail", *both)
    said = fast.communicate(timeout=60)[0]
    assert "unlucky 0" in said and fast.returncode == 1
    late = start(
        tmp_path / "late", "what=slow", "number=1,2", "hydra.launcher.jobs=2", "hydra.launcher.timeout_s=2.5"
    )
    late.communicate(timeout=60)
    rows = json.loads((tmp_path / "late/returned.json").read_text())
    assert ["longer than hydra.launcher.timeout_s" in row[1] for row in rows] == [True, True]
    begun = [json.loads(file.read_text()) for file in tmp_path.glob("*/out/*/begun.json")]
    assert are_gone([pid for one in begun for pid in one if pid])
