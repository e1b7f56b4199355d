"""Leases: disjoint, machine-wide, freed by the death of who holds them, shared by what jobs say they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.launch.gpus import Card
from llmsys_exp.sweeps.running import lease as module
from llmsys_exp.sweeps.running.lease import Leases, Slot, core_slots, gpu_slots, memory_table, variables

GIB = 1 << 30
CARDS = tuple(Slot(f"gpu-GPU-{letter}", str(index), 80 * GIB) for index, letter in enumerate("abcd"))

HOLDER = """
import sys, time
from pathlib import Path
from llmsys_exp.sweeps.running.lease import Leases, Slot
leases = Leases([Slot(f"core-{n}", str(n)) for n in range(4)], Path(sys.argv[1]))
while (lease := leases.acquire(2)) is None:
    time.sleep(0.01)
print(*lease.names, flush=True)
time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)


def test_two_leases_never_share_a_slot_and_a_third_waits(tmp_path: Path):
    first = Leases(CARDS, tmp_path).acquire(2)
    second = Leases(CARDS, tmp_path).acquire(2)
    assert first is not None and second is not None
    assert {*first.names, *second.names} == {slot.name for slot in CARDS}
    assert Leases(CARDS, tmp_path).acquire(1) is None
    first.release()
    again = Leases(CARDS, tmp_path).acquire(2)
    assert again is not None and again.names == ["gpu-GPU-a", "gpu-GPU-b"]
    assert variables(again) == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_kill_9_of_the_owner_frees_its_lease_and_no_other(tmp_path: Path):
    holders = [holder(tmp_path) for _ in range(3)]
    try:
        held: dict[int, str] = {}
        leases = Leases([Slot(f"core-{n}", str(n)) for n in range(4)], tmp_path)
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("core-*"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert leases.acquire(1) is None, "two of three hold all four"
        os.set_blocking(holders[0].stdout.fileno(), False)
        for number, one in enumerate(holders):
            os.set_blocking(one.stdout.fileno(), False)
            held[number] = one.stdout.readline()
        owner = next(number for number, names in held.items() if names)
        waiting = next(number for number, names in held.items() if not names)
        holders[owner].send_signal(signal.SIGKILL)
        holders[owner].wait()
        os.set_blocking(holders[waiting].stdout.fileno(), True)
        assert holders[waiting].stdout.readline() == held[owner], "the one that waited has it now"
        assert leases.acquire(1) is None
    finally:
        for one in holders:
            one.kill()
            one.wait()
    assert leases.acquire(4) is not None


def test_lease_lives_on_in_the_job_that_inherits_it(tmp_path: Path):
    leases = Leases(CARDS, tmp_path)
    lease = leases.acquire(4)
    assert lease is not None
    job = subprocess.Popen(["sleep", "60"], pass_fds=lease.descriptors)
    lease.release()
    assert leases.acquire(1) is None
    job.kill()
    job.wait()
    assert leases.acquire(4) is not None


def test_jobs_that_say_what_they_need_share_a_card(tmp_path: Path):
    leases = Leases(CARDS[:1], tmp_path)
    first, second = leases.acquire(1, 30 * GIB), leases.acquire(1, 40 * GIB)
    assert first is not None and second is not None
    assert leases.acquire(1, 20 * GIB) is None, "30 + 40 + 20 is more than 80"
    assert leases.acquire(1) is None, "who wants a card alone waits"
    first.release()
    assert leases.acquire(1, 40 * GIB) is not None


def test_jobs_that_take_more_than_they_said_leave_no_room_on_their_card(tmp_path: Path):
    used = {"gpu-GPU-a": 0}
    leases = Leases(CARDS[:1], tmp_path, used_bytes=lambda: used)
    first = leases.acquire(1, 30 * GIB)
    used["gpu-GPU-a"] = 60 * GIB
    assert leases.acquire(1, 30 * GIB) is None
    used["gpu-GPU-a"] = 31 * GIB
    assert first is not None and leases.acquire(1, 30 * GIB) is not None


def test_jobs_share_main_memory_and_the_first_is_never_kept_waiting(tmp_path: Path):
    leases = Leases(CARDS, tmp_path, host_bytes=100 * GIB)
    first = leases.acquire(1, host_bytes=120 * GIB)
    assert first is not None, "the gate has judged it; nothing would become free by waiting"
    assert leases.acquire(1, host_bytes=1 * GIB) is None
    assert leases.acquire(1) is not None, "nothing is known of this one"
    first.release()
    second = leases.acquire(1, host_bytes=60 * GIB)
    assert second is not None and second.names == ["gpu-GPU-a"], (
        "main memory is not among what a job is given"
    )
    assert leases.acquire(1, host_bytes=41 * GIB) is None
    assert leases.acquire(1, host_bytes=40 * GIB) is not None


def test_card_that_others_use_is_left_alone_until_it_is_free(tmp_path: Path):
    used = {"gpu-GPU-a": 5 * GIB, "gpu-GPU-b": 200 << 20}
    leases = Leases(CARDS[:2], tmp_path, used_bytes=lambda: used)
    lease = leases.acquire(1)
    assert lease is not None and lease.names == ["gpu-GPU-b"]
    assert leases.acquire(1) is None
    used["gpu-GPU-a"] = 0
    assert leases.acquire(1) is not None


def test_count_that_is_never_there_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="needs 5 GPUs, and this machine offers 4"):
        Leases(CARDS, tmp_path).acquire(5)


def test_slots_are_named_by_uuid_whatever_the_variable_calls_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    script = tmp_path / "nvidia-smi"
    script.write_text('#!/bin/sh\necho "GPU-a, 81920, 12"\necho "GPU-b, 81920, 7000"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    table = memory_table()
    assert table == {"GPU-a": (81920 << 20, 12 << 20), "GPU-b": (81920 << 20, 7000 << 20)}
    cards = [Card(0, "GPU-a"), Card(1, "GPU-b")]
    by_number, by_uuid = gpu_slots(["1"], cards, table), gpu_slots(["GPU-b"], cards, table)
    assert by_number[0].name == by_uuid[0].name == "gpu-GPU-b"
    assert by_number[0].capacity_bytes == 80 * GIB
    assert module.used_by_slot()["gpu-GPU-b"] == 7000 << 20


def test_machine_without_gpus_leases_its_cores(tmp_path: Path):
    slots = core_slots()
    assert [int(slot.value) for slot in slots] == sorted(os.sched_getaffinity(0))
    lease = Leases(slots, tmp_path).acquire(1)
    assert lease is not None and variables(lease) == {}
    assert module.cores(lease) == {min(os.sched_getaffinity(0))}
    assert [json.loads(path.read_text()) for path in tmp_path.glob("core-*")] == [None]
