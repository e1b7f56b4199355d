"""A sweep whose disk is full: one message, nothing lost, and `resume` once there is room."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmsys_exp.cli.main import run as llmsys
from llmsys_exp.errors import UserError
from llmsys_exp.runs.lock import locked
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep, open_sweep
from llmsys_exp.sweeps.ledger.ledger import RUNNING
from llmsys_exp.sweeps.ledger.settle import AGAIN, reopen
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running import start
from llmsys_exp.sweeps.running.lease import Leases, Slot
from llmsys_exp.sweeps.running.runner import Runner, RunOptions

STANDIN = Path(__file__).parents[1] / "sweep_standin.py"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a disk of 256 kB, which is the working folder; its jobs only pretend."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("may not mount a small disk")
    real = start.job_command
    monkeypatch.setattr(
        start, "job_command", lambda *asked: [sys.executable, str(STANDIN), *real(*asked)[3:]]
    )
    monkeypatch.chdir(folder)
    try:
        yield folder
    finally:
        monkeypatch.chdir(tmp_path)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    try:
        with (disk / "filler").open("ab", buffering=0) as stream:
            while True:
                stream.write(b"0" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC


def sweep_of(*whats: str) -> tuple[SweepPaths, Sweep]:
    points = [Point(number, f"{number:08x}", (f"name={what}",)) for number, what in enumerate(whats, start=1)]
    return create_sweep(Path("out"), "standin", "train", base=(), points=points, options={})


def run(paths: SweepPaths, leases: Path) -> list[str]:
    """Run what is left of a sweep and return the states, as `llmsys sweep resume` does."""
    paths, sweep = open_sweep(paths.folder)
    slots = Leases([Slot(f"slot-{number}", "") for number in range(2)], leases)
    with locked(paths.lock):
        options = RunOptions(jobs=2)
        runner = Runner(paths, sweep, options, leases=slots, needs=lambda overrides: 1, say=lambda text: None)
        return [now.state for now in runner.run().values()]


def test_a_sweep_is_not_begun_where_it_cannot_be_written_down(disk, capsys) -> None:
    fill(disk)
    assert llmsys(["sweep", "run", "seed=1,2", "gate=off", f"paths.outputs={disk}/out"]) == 2
    said = capsys.readouterr().err
    assert "Cannot write: No space left on device" in said and "Traceback" not in said
    assert llmsys(["sweep", "list", str(disk / "out")]) == 0
    assert "No sweeps" in capsys.readouterr().out


def test_points_wait_while_the_ledger_cannot_be_written(disk, tmp_path) -> None:
    paths, _ = sweep_of("ok", "ok", "ok")
    before = paths.ledger.read_bytes() if paths.ledger.exists() else b""
    fill(disk)
    with pytest.raises(UserError, match="No space left on device"):
        run(paths, tmp_path / "leases")
    assert (paths.ledger.read_bytes() if paths.ledger.exists() else b"") == before
    (disk / "filler").unlink()
    assert run(paths, tmp_path / "leases") == ["done"] * 3


def test_runs_that_find_the_disk_full_end_the_sweep_and_are_taken_up_again(disk, tmp_path) -> None:
    paths, sweep = sweep_of("held", "held", "ok")

    def fill_while_they_run() -> None:
        wait_for(
            lambda: all(now.state == RUNNING and "folder" in now.fields for now in states(paths, sweep)[:2])
        )
        fill(disk)
        (disk / "open").touch()  # takes no page

    filler = threading.Thread(target=fill_while_they_run)
    filler.start()
    with pytest.raises(UserError, match="The disk is full: no further point was started"):
        run(paths, tmp_path / "leases")
    filler.join()
    told = [(now.state, now.fields.get("kind")) for now in states(paths, sweep)]
    assert told == [("failed", "disk"), ("failed", "disk"), ("planned", None)]
    (disk / "filler").unlink()
    reopen(sweep.ledger(paths), AGAIN)
    assert run(paths, tmp_path / "leases") == ["done"] * 3
    assert [now.attempt for now in states(paths, sweep)] == [2, 2, 1]


def states(paths: SweepPaths, sweep: Sweep):
    return list(sweep.ledger(paths).states().values())


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
