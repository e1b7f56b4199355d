"""Points as tasks of Slurm, without Slurm: what happens to the ledger, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from llmsys_exp.cli.main import run
from llmsys_exp.cli.sweep_slurm import check_slurm
from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, RUNNING
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running.runner import RunOptions
from llmsys_exp.sweeps.slurm import array
from llmsys_exp.sweeps.slurm.task import _start, _wait, take_back

NEEDS_SUBMITIT = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs the extra `slurm`"
)


@pytest.fixture
def made(tmp_path: Path) -> tuple[SweepPaths, Sweep]:
    points = [Point(number, f"{number:016x}", (f"seed={number}",)) for number in (1, 2, 3)]
    return create_sweep(tmp_path, "far", "train", base=(), points=points, options={})


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **answers: str) -> None:
    """Put commands of Slurm on PATH that say what is given."""
    for name in ("sbatch", "srun", "scancel", "squeue"):
        file = folder / name
        file.write_text(f"#!/bin/sh\n{answers.get(name, 'true')}\n", encoding="utf-8")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(array, "find_spec", lambda name: object())


def begin(made: tuple[SweepPaths, Sweep], number: int, task: str) -> None:
    paths, sweep = made
    assert sweep.ledger(paths).move(number, RUNNING, lease=[f"slurm-{task}"], host="far away", pid=1, born=1)
    with (paths.folder / "slurm" / "tasks.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"point": number, "task": task}) + "\n")


def states(made: tuple[SweepPaths, Sweep]) -> list[str]:
    paths, sweep = made
    return [now.state for now in sweep.ledger(paths).states().values()]


def test_a_task_that_is_gone_leaves_its_point_lost_or_done(made, tmp_path, monkeypatch) -> None:
    paths, sweep = made
    (paths.folder / "slurm").mkdir()
    stand_in(tmp_path, monkeypatch, squeue="echo 7_2 PENDING")
    for number in (1, 2, 3):
        begin(made, number, f"7_{number - 1}")
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    sweep.ledger(paths).move(2, RUNNING, attempt=1, folder=str(folder))
    assert array.settle_tasks(paths, sweep) == {3: array.Task("7_2", "PENDING")}
    assert states(made) == [LOST, DONE, RUNNING]


def test_a_requeued_task_takes_back_its_own_point_only(made) -> None:
    paths, sweep = made
    (paths.folder / "slurm").mkdir()
    ledger = sweep.ledger(paths)
    for number in (1, 2):
        begin(made, number, "7_0")
    begin(made, 3, "8")
    ledger.move(2, FAILED, attempt=1, kind="stopped")
    for number in (1, 2, 3):
        take_back(ledger, number, "slurm-7_0")
    assert states(made) == [LOST, PLANNED, RUNNING]


def test_a_point_that_failed_by_itself_is_not_taken_back(made) -> None:
    paths, sweep = made
    (paths.folder / "slurm").mkdir()
    begin(made, 1, "7_0")
    sweep.ledger(paths).move(1, FAILED, attempt=1, kind="oom_gpu")
    take_back(sweep.ledger(paths), 1, "slurm-7_0")
    assert states(made)[0] == FAILED


def test_only_tasks_that_are_alive_are_cancelled(made, tmp_path, monkeypatch) -> None:
    paths, _ = made
    (paths.folder / "slurm").mkdir()
    told = tmp_path / "told"
    stand_in(tmp_path, monkeypatch, squeue="printf '9\\n7_1\\n'", scancel=f'echo "$@" > "{told}"')
    begin(made, 1, "7_0")
    begin(made, 2, "7_1")
    assert array.cancel_tasks(paths) == ["7_1"]
    assert told.read_text(encoding="utf-8") == "7_1\n"


def test_a_child_does_not_hear_the_signal_that_asks_for_a_checkpoint_and_its_code_can_be_read_twice(
    tmp_path,
) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = _start(["sh", "-c", "kill -USR2 $$; exit 6"], {"PATH": "/usr/bin:/bin"}, log.fileno())
        assert (_wait(child), _wait(child), child.wait()) == (6, 6, 6)
        killed = _start(["sh", "-c", "kill -KILL $$"], {"PATH": "/usr/bin:/bin"}, log.fileno())
        assert (_wait(killed), killed.wait()) == (-9, -9)


def test_without_slurm_or_submitit_nothing_is_made(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = ["sweep", "run", "training.micro_batch=1,2", "--slurm", "time=5"]
    assert run(asked) == 2
    assert "Slurm is not installed here" in capsys.readouterr().err
    stand_in(tmp_path, monkeypatch)
    monkeypatch.setattr(array, "find_spec", lambda name: None)
    assert run(asked) == 2
    assert "pip install 'llmsys-exp[slurm]'" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@NEEDS_SUBMITIT
@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("gpus_per_node=1", {}, "how long a point may take"),
        ("time=2:00:00", {}, "how long a point may take"),
        ("time=5,gpu_per_node=1", {}, "Did you mean gpus_per_node"),
        ("time=5,partition=", {}, "partition has no value"),
        ("time=5", {"fail_fast": True}, "--fail-fast does not go with --slurm"),
    ],
)
def test_options_that_slurm_cannot_follow_are_refused(text, options, expected, tmp_path, monkeypatch) -> None:
    stand_in(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=expected):
        check_slurm(RunOptions(slurm=text, **options))


@NEEDS_SUBMITIT
def test_what_slurm_says_of_a_job_that_it_refuses_is_passed_on(made, tmp_path, monkeypatch) -> None:
    paths, sweep = made
    stand_in(tmp_path, monkeypatch, sbatch="echo 'no such partition' >&2; exit 1")
    options = array.parse_options("time=5,partition=gpu")
    assert options == {"time": 5, "partition": "gpu"}
    with pytest.raises(UserError, match=r"Slurm did not take the job.*no such partition"):
        array.submit(paths, sweep, options)
    assert states(made) == [PLANNED] * 3


@NEEDS_SUBMITIT
@pytest.mark.parametrize(
    ("stand_ins", "said"),
    [({"squeue": "exit 1"}, "Slurm does not answer"), ({"sbatch": "exit 1"}, "Slurm did not take the job")],
    ids=["no answer", "refused"],
)
def test_a_sweep_that_slurm_refuses_leaves_no_folder(stand_ins, said, tmp_path, monkeypatch, capsys) -> None:
    stand_in(tmp_path, monkeypatch, **stand_ins)
    asked = ["hardware=cpu", "gate=off", "seed=1,2", f"paths.outputs={tmp_path / 'out'}"]
    assert run(["sweep", "run", *asked, "--slurm", "time=5"]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))
