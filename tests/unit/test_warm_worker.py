"""A worker that stays: one folder after the other, each with its own log, and nothing left at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.errors import JobError, UserError
from llmsys_exp.launch.warm import WarmWorker

WORKER = """
import json, os, sys, time
say = lambda **event: print("@llmsys " + json.dumps(event), flush=True)
for line in sys.stdin:
    folder = line.strip()
    print("working on", folder, "in", os.getpid(), flush=True)
    code = 0
    if folder.endswith("bad"):
        code = 2
        say(event="error", kind="data", text="Row 3 has no instruction.", code=2)
    if folder.endswith("dies"):
        os._exit(7)
    if folder.endswith("hangs"):
        time.sleep(60)
    say(event="phase", name="answer prompts")
    say(event="done", folder=folder, code=code)
"""


@pytest.fixture
def worker() -> Iterator[WarmWorker]:
    with WarmWorker([sys.executable, "-c", WORKER], env=os.environ) as warm:
        yield warm


def do(worker: WarmWorker, folder: Path, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    folder.mkdir(exist_ok=True)
    events: list[dict[str, Any]] = []
    worker.run(folder, log=folder / "log.txt", on_event=events.append, **options)
    text = (folder / "log.txt").read_text(encoding="utf-8")
    assert text.count("working on") == 1
    return int(text.split(" in ")[1].split()[0]), events


def test_one_process_does_several_folders_each_with_its_own_log(worker: WarmWorker, tmp_path: Path) -> None:
    first, events = do(worker, tmp_path / "one")
    second, _ = do(worker, tmp_path / "two")
    assert first == second
    assert events == [{"event": "phase", "name": "answer prompts"}]
    worker.close()
    assert not Path(f"/proc/{first}").exists()
    assert not worker.is_alive


def test_a_folder_that_fails_ends_neither_the_worker_nor_the_rest(worker: WarmWorker, tmp_path: Path) -> None:
    first, _ = do(worker, tmp_path / "one")
    with pytest.raises(UserError, match="Row 3 has no instruction"):
        do(worker, tmp_path / "bad")
    assert do(worker, tmp_path / "two")[0] == first


def test_a_worker_that_dies_is_named_and_the_next_folder_gets_another(
    worker: WarmWorker, tmp_path: Path
) -> None:
    first, _ = do(worker, tmp_path / "one")
    with pytest.raises(JobError, match="exit code 7"):
        do(worker, tmp_path / "dies")
    assert do(worker, tmp_path / "two")[0] != first


def test_a_folder_that_takes_too_long_is_stopped(worker: WarmWorker, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        do(worker, tmp_path / "hangs", timeout_s=0.4)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - began < 20
    assert not worker.is_alive
