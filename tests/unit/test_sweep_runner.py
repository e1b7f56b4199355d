"""The runner of a sweep with jobs that only pretend: what ends how, who is ended with it, what is run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmsys_exp.runs.lock import locked
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep, open_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, RUNNING, SKIPPED, PointState
from llmsys_exp.sweeps.ledger.settle import reopen
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running import start
from llmsys_exp.sweeps.running.lease import Leases, Slot
from llmsys_exp.sweeps.running.processes import TAG
from llmsys_exp.sweeps.running.runner import Runner, RunOptions

STANDIN = Path(__file__).parents[1] / "sweep_standin.py"


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def command(folder: Path, number: int, timeout_s: float | None) -> list[str]:
        real = job_command(folder, number, timeout_s)
        return [real[0], str(STANDIN), *real[3:]]

    job_command = start.job_command
    monkeypatch.setattr(start, "job_command", command)
    monkeypatch.chdir(tmp_path)


def sweep_of(*whats: str) -> tuple[SweepPaths, Sweep]:
    points = [Point(number, f"{number:08x}", (f"name={what}",)) for number, what in enumerate(whats, start=1)]
    return create_sweep(Path("out"), "standin", "train", base=(), points=points, options={})


def run(
    paths: SweepPaths,
    sweep: Sweep,
    *,
    slots: int = 4,
    needs: int = 1,
    name: str = "core",
    leases: Leases | None = None,
    **options,
) -> dict[int, PointState]:
    said: list[str] = []
    value = (lambda n: str(min(os.sched_getaffinity(0)))) if name == "core" else str
    leases = leases or Leases([Slot(f"{name}-{n}", value(n)) for n in range(slots)], paths.folder / "leases")
    options = {"jobs": 4, **options}
    with locked(paths.lock):
        runner = Runner(
            paths, sweep, RunOptions(**options), leases=leases, needs=lambda overrides: needs, say=said.append
        )
        return runner.run()


def in_words(states: dict[int, PointState]) -> list[str]:
    return [f"{now.state} {now.fields.get('kind', '')}".strip() for now in states.values()]


def folders() -> list[Path]:
    return sorted(path.parent for path in Path("out/standin").glob("*/job.json"))


def tagged(sweep: Sweep) -> list[int]:
    """Return what still runs of a sweep."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            value = process.environ().get(TAG, "")
        except psutil.Error:
            continue
        if value.startswith(f"{sweep.id}/") and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_every_way_to_end_is_told_with_its_kind_and_leaves_nothing_running():
    paths, sweep = sweep_of("ok", "fail", "refuse", "killed", "crash", "half", "stopped")
    states = run(paths, sweep)
    assert in_words(states) == [
        "done",
        "failed oom_gpu",
        "failed config",
        "failed killed",
        "failed bug",
        "done",
        "failed stopped",
    ]
    assert states[6].fields["found"] is True, "killed between its last file and the word of it"
    assert states[2].fields["what"] == "The GPU ran out of memory"
    assert "Last lines of the log:\nCUDA out of memory" in paths.point_log(2).read_text(encoding="utf-8")
    assert tagged(sweep) == []
    assert Path(states[1].fields["folder"]).parent.name == "standin"


def test_finished_points_are_never_run_twice_and_resume_takes_up_what_was_killed():
    paths, sweep = sweep_of("ok", "fail", "killed")
    run(paths, sweep)
    assert len(folders()) == 3
    Path("spared").touch()
    reopen(sweep.ledger(paths), {"killed", "stopped"})
    states = run(*open_sweep(paths.folder))
    assert in_words(states) == ["done", "failed oom_gpu", "done"]
    assert (len(folders()), states[3].attempt) == (4, 2)
    run(paths, sweep)
    assert len(folders()) == 4


def test_retry_of_one_kind_adds_its_settings_behind_the_points_own():
    paths, sweep = sweep_of("fail", "refuse")
    run(paths, sweep)
    ledger = sweep.ledger(paths)
    assert reopen(ledger, {"oom_gpu"}, ["y=2"]) == [1]
    run(paths, sweep)
    asked = [json.loads((folder / "job.json").read_text())["arguments"] for folder in folders()]
    assert sorted(asked) == [["name=fail"], ["name=fail", "y=2"], ["name=refuse"]]


def test_each_job_has_a_lease_and_a_process_group_of_its_own():
    paths, sweep = sweep_of(*["short"] * 6)
    states = run(paths, sweep, slots=2, name="gpu")
    seen = [json.loads((folder / "seen.json").read_text()) for folder in folders()]
    assert in_words(states) == ["done"] * 6
    assert len({one["group"] for one in seen}) == 6
    assert {one["gpus"] for one in seen} == {"0", "1"}
    for one in seen:
        beside = [other for other in seen if other["began"] < one["ended"] and one["began"] < other["ended"]]
        alike = [other for other in beside if other["gpus"] == one["gpus"]]
        assert alike == [one], "two jobs at a time on one card"
    assert all(now.fields["lease"] in (["gpu-0"], ["gpu-1"]) for now in states.values())


def test_packed_jobs_share_a_card_up_to_the_sum_of_their_forecasts():
    points = [Point(number, f"{number:08x}", ("name=short", f"x={number}")) for number in range(1, 5)]
    forecast = {"verdict": "runs", "figures": {"where": "gpu", "needed_gib": 34.0, "device_gib": 35.0}}
    asked = {"base": (), "points": points, "options": {}, "forecasts": [forecast] * 4}
    paths, _ = create_sweep(Path("out"), "standin", "train", **asked)
    card = Slot("gpu-0", "0", 80 << 30)
    states = run(*open_sweep(paths.folder), leases=Leases([card], paths.folder / "leases"), pack=True)
    assert in_words(states) == ["done"] * 4
    seen = [json.loads((folder / "seen.json").read_text()) for folder in folders()]
    beside = [sum(o["began"] < one["began"] < o["ended"] for o in seen) for one in seen]
    assert max(beside) == 1, "two at a time, as three would need 105 of 80 GiB"


def test_more_slots_than_there_are_fails_the_point_and_not_the_sweep():
    paths, sweep = sweep_of("ok", "ok")
    states = run(paths, sweep, slots=2, needs=3, name="gpu")
    assert in_words(states) == ["failed config", "failed config"]
    assert "needs 3 GPUs, and this machine offers 2" in states[1].fields["what"]


def test_point_that_takes_too_long_is_ended_with_all_it_started():
    paths, sweep = sweep_of("slow", "ok")
    states = run(paths, sweep, timeout_s=1.5)
    assert in_words(states) == ["failed timeout", "done"]
    assert tagged(sweep) == []


def test_fail_fast_stops_the_others_so_that_they_can_go_on_later():
    paths, sweep = sweep_of("slow", "fail", "ok", "ok", "ok")
    states = run(paths, sweep, jobs=2, fail_fast=True)
    assert in_words(states) == ["failed stopped", "failed oom_gpu", "planned", "planned", "planned"]
    assert tagged(sweep) == []


def test_interrupt_leaves_all_resumable_and_nothing_running():
    paths, sweep = sweep_of("slow", "ok", "slow")
    ledger = sweep.ledger(paths)
    timer = threading.Thread(
        target=lambda: (
            wait_for(lambda: [now.state for now in ledger.states().values()] == [RUNNING, DONE, RUNNING]),
            os.kill(os.getpid(), signal.SIGINT),
        )
    )
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(paths, sweep)
    timer.join()
    assert in_words(ledger.states()) == ["failed stopped", "done", "failed stopped"]
    wait_for(lambda: tagged(sweep) == [])  # a process that has written its end may still be leaving


def test_job_that_outlived_its_runner_is_waited_for_and_not_started_again():
    paths, sweep = sweep_of("short", "ok")
    orphan = subprocess.Popen([sys.executable, str(STANDIN), str(paths.folder), "1"], start_new_session=True)
    ledger = sweep.ledger(paths)
    wait_for(lambda: ledger.states()[1].state == RUNNING)
    states = run(paths, sweep)
    orphan.wait()
    assert in_words(states) == ["done", "done"]
    assert (len(folders()), states[1].attempt) == (2, 1)


def test_job_killed_with_its_runner_is_lost_then_run_again_without_its_worker():
    paths, sweep = sweep_of("slow")
    job = subprocess.Popen([sys.executable, str(STANDIN), str(paths.folder), "1"], start_new_session=True)
    ledger = sweep.ledger(paths)
    wait_for(lambda: any((folder / "worker").exists() for folder in folders()))
    job.kill()
    job.wait()
    assert len(tagged(sweep)) == 1, "its worker runs on"
    states = run(paths, sweep, timeout_s=1.0)
    assert in_words(states) == ["failed timeout"]
    assert states[1].attempt == 2
    assert tagged(sweep) == []
    assert [json.loads(line).get("state") for line in paths.ledger.read_text().splitlines()].count(LOST) == 1
    assert ledger.states()[1].state == FAILED


def test_second_job_of_one_point_is_told_that_it_is_taken():
    paths, _ = sweep_of("short")
    command = [sys.executable, str(STANDIN), str(paths.folder), "1"]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert sorted(one.wait(timeout=60) for one in both) == [0, 75]
    assert len(folders()) == 1
    assert subprocess.run(command, check=False).returncode == 75, "and a done point stays done"


def test_attempt_with_something_to_go_on_from_goes_on_in_its_folder():
    paths, sweep = sweep_of("killed")
    run(paths, sweep)
    (folder,) = folders()
    (folder / "results" / "train.json").write_text("{}")
    reopen(sweep.ledger(paths), {"killed"})
    states = run(paths, sweep)
    assert in_words(states) == ["done"]
    assert folders() == [folder]
    assert (folder / "gone_on").exists()


@pytest.mark.parametrize("how", ["nothing_left", "refused"])
def test_attempt_that_cannot_go_on_begins_anew(how: str):
    paths, sweep = sweep_of("killed")
    run(paths, sweep)
    (before,) = folders()
    (before / "results" / "train.json").write_text("{}")
    Path(how).touch()
    Path("spared").touch()
    reopen(sweep.ledger(paths), {"killed"})
    (point,) = run(paths, sweep).values()
    assert point.state == DONE
    assert Path(point.fields["folder"], "manifest.json").exists()
    assert Path(point.fields["folder"]).name != before.name
    assert "Beginning anew" in paths.point_log(1).read_text(encoding="utf-8")


def test_skipped_points_are_not_run_unless_asked_for():
    paths, sweep = sweep_of("ok", "ok")
    ledger = sweep.ledger(paths)
    ledger.move(1, SKIPPED, needed_gib=9.0, limit_gib=8.0)
    assert in_words(run(paths, sweep)) == ["skipped", "done"]
    assert reopen(ledger, {"skipped"}) == [1]
    assert ledger.states()[1].state == PLANNED


def test_command_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "job_command", lambda *asked: [sys.executable, "-c", "raise SystemExit(9)"])
    paths, sweep = sweep_of("ok")
    states = run(paths, sweep)
    assert in_words(states) == ["failed other"]
    assert states[1].fields["what"] == "Its command ended with exit code 9 before it began"


def test_sweep_of_a_later_version_or_none_at_all_is_refused(tmp_path: Path):
    from llmsys_exp.errors import UserError

    with pytest.raises(UserError, match="no folder of a sweep"):
        open_sweep(tmp_path)
    paths, _ = sweep_of("ok")
    content = json.loads(paths.sweep.read_text())
    paths.sweep.write_text(json.dumps(content | {"schema_version": 3}))
    with pytest.raises(UserError, match="version 3"):
        open_sweep(paths.folder)


def test_a_changed_sweep_is_refused_and_one_of_old_is_read():
    from llmsys_exp.errors import UserError
    from llmsys_exp.sweeps.ledger.lines import decode, encode

    paths, sweep = sweep_of("ok")
    written = paths.sweep.read_bytes()
    paths.sweep.write_bytes(written.replace(b'"verdict"', b'"verdikt"') + b"\n")
    with pytest.raises(UserError, match=r"(?s)not as it was written.*Put the file back"):
        open_sweep(paths.folder)
    first = decode(paths.ledger.read_bytes().splitlines()[0])
    assert first is not None
    del first["asked"]  # as llmsys wrote ledgers before
    paths.ledger.write_bytes(encode(first))
    assert open_sweep(paths.folder)[1].id == sweep.id
    paths.sweep.write_bytes(written)
    assert open_sweep(paths.folder)[1] == sweep
