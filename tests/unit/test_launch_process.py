"""Workers are followed to their end, their failures named, and nothing they started is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.errors import JobError, UserError
from llmsys_exp.launch.failure import classify, log_tail
from llmsys_exp.launch.process import parse_event, run_worker

CHILD_THEN_SLEEP = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
{after}
"""


def work(code: str, tmp_path: Path, *arguments: str, **options: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    command = [sys.executable, "-c", code, *arguments]
    run_worker(command, env=os.environ, log=tmp_path / "log.txt", on_event=events.append, **options)
    return events


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(pid)


def test_events_are_passed_on_and_everything_is_logged(tmp_path: Path) -> None:
    code = """print("hello"); print('@llmsys {"event": "phase", "name": "load"}'); print("noise @llmsys {broken")"""
    assert work(code, tmp_path) == [{"event": "phase", "name": "load"}]
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count("\n") == 3


@pytest.mark.parametrize(
    ("line", "event"),
    [
        pytest.param('@llmsys {"event": "phase"}', {"event": "phase"}, id="whole line"),
        pytest.param('rank 1 said @llmsys {"event": "phase"} more', {"event": "phase"}, id="inside a line"),
        pytest.param("@llmsys {", None, id="cut short"),
        pytest.param("@llmsys [1]", None, id="no object"),
        pytest.param("plain", None, id="no marker"),
    ],
)
def test_event_lines_are_read(line: str, event: dict[str, Any] | None) -> None:
    assert parse_event(line) == event


def test_a_mistake_of_the_user_comes_back_as_one(tmp_path: Path) -> None:
    code = """import sys; print('@llmsys {"event": "error", "kind": "data", "text": "row 3 is empty"}'); sys.exit(2)"""
    with pytest.raises(UserError, match="row 3 is empty") as caught:
        work(code, tmp_path)
    assert caught.value.exit_code == 2


def test_a_failure_carries_kind_and_last_lines(tmp_path: Path) -> None:
    code = """import sys; print("torch.OutOfMemoryError: CUDA out of memory. Tried to"); sys.exit(1)"""
    with pytest.raises(JobError) as caught:
        work(code, tmp_path)
    assert caught.value.kind == "oom_gpu"
    assert "Tried to" in caught.value.log_tail
    assert "training.micro_batch" in str(caught.value)
    assert caught.value.exit_code == 4


def test_the_worker_names_its_own_failure(tmp_path: Path) -> None:
    code = """import sys; print('@llmsys {"event": "error", "kind": "diverged", "text": "loss is nan"}'); sys.exit(4)"""
    with pytest.raises(JobError, match="loss is nan") as caught:
        work(code, tmp_path)
    assert caught.value.kind == "diverged"


def test_a_program_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        run_worker(["/no/such/program"], env={}, log=tmp_path / "log.txt", on_event=print)


def test_a_timeout_ends_the_worker_and_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(JobError, match=r"launcher\.timeout_s") as caught:
        work(CHILD_THEN_SLEEP.format(after="time.sleep(60)"), tmp_path, str(pid_file), timeout_s=1.5)
    assert caught.value.kind == "timeout"
    assert wait_until_gone(int(pid_file.read_text(encoding="utf-8")))


def test_a_child_that_outlives_the_worker_does_not_block_us(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    started = time.monotonic()
    work(CHILD_THEN_SLEEP.format(after=""), tmp_path, str(pid_file))
    assert time.monotonic() - started < 20
    assert wait_until_gone(int(pid_file.read_text(encoding="utf-8")))


def test_an_interrupt_ends_the_worker_and_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def interrupt_once_started() -> None:
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_once_started, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        work(CHILD_THEN_SLEEP.format(after="time.sleep(60)"), tmp_path, str(pid_file))
    assert wait_until_gone(int(pid_file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("returncode", "line", "kind"),
    [
        pytest.param(1, "torch.OutOfMemoryError: CUDA out of memory.", "oom_gpu", id="gpu memory"),
        pytest.param(1, "MemoryError", "oom_host", id="main memory"),
        pytest.param(1, "ncclSystemError: System call failed", "nccl", id="nccl"),
        pytest.param(1, "RuntimeError: EADDRINUSE", "nccl", id="port taken"),
        pytest.param(1, "OSError: [Errno 28] No space left on device", "disk", id="disk"),
        pytest.param(-9, "", "killed", id="kill -9"),
        pytest.param(247, "... exits with return code = -9", "killed", id="rank killed under the runner"),
        pytest.param(-15, "", "killed", id="sigterm"),
        pytest.param(1, "ValueError: x", "other", id="python error"),
    ],
)
def test_failures_have_kinds(returncode: int, line: str, kind: str) -> None:
    assert classify(returncode, [line]).kind == kind


def test_what_went_into_a_session_of_its_own_is_ended_too(tmp_path: Path) -> None:
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
                         stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(str(child.pid))
"""
    work(code, tmp_path, str(tmp_path / "pid"))
    assert wait_until_gone(int((tmp_path / "pid").read_text(encoding="utf-8")))


def test_the_first_rank_that_fails_says_why_and_with_which_code(tmp_path: Path) -> None:
    code = """import sys
print('@llmsys {"event": "error", "kind": "stopped", "text": "saved", "code": 6, "step": 3}')
print('@llmsys {"event": "error", "kind": "interrupted", "text": "stopped", "code": 130}'); sys.exit(1)"""
    with pytest.raises(JobError, match="saved") as caught:
        work(code, tmp_path)
    assert (caught.value.kind, caught.value.exit_code) == ("stopped", 6)
    assert caught.value.details == {"step": 3}


def test_a_users_mistake_is_known_although_the_launcher_ends_with_another_code(tmp_path: Path) -> None:
    code = """import sys; print('@llmsys {"event": "error", "kind": "user", "text": "no pad", "code": 2}'); sys.exit(1)"""
    with pytest.raises(UserError, match="no pad") as caught:
        work(code, tmp_path)
    assert not isinstance(caught.value, JobError)


@pytest.mark.parametrize(("by_kernel", "kind"), [(True, "oom_host"), (False, "killed")])
@pytest.mark.parametrize(
    ("returncode", "line"), [(-9, "the room is full"), (1, "  exitcode  : -9 (pid: 7)"), (247, "")]
)
def test_a_kill_by_the_kernel_for_want_of_memory_is_told_apart(by_kernel, kind, returncode, line) -> None:
    if returncode == 247:
        line = "exits with return code = -9"
    assert classify(returncode, [line], killed_by_kernel=by_kernel).kind == kind


def test_a_run_stopped_on_request_ends_with_its_own_code_and_says_how_to_go_on(tmp_path: Path) -> None:
    event = '{"event": "error", "kind": "stopped", "text": "Go on with `llmsys train resume=x`.", "code": 6}'
    with pytest.raises(JobError) as raised:
        work(f"print('noise'); print('@llmsys {event}'); exit(1)", tmp_path)
    assert (raised.value.kind, raised.value.exit_code, raised.value.log_tail) == ("stopped", 6, "")
    assert str(raised.value) == "Go on with `llmsys train resume=x`."


def test_the_tail_of_a_log_ends_where_the_launcher_reports_what_a_rank_has_said():
    said = ["step 3", "torch.OutOfMemoryError: CUDA out of memory", ""]
    box = [
        "E1130 02:57:05.479000 848 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 4) local_rank: 1",
        "Traceback (most recent call last):",
        "ChildFailedError",
    ]
    assert log_tail(said + box) == "step 3\ntorch.OutOfMemoryError: CUDA out of memory"
    assert log_tail(box).startswith("E1130")
