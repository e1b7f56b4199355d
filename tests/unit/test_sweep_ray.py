"""Points as tasks of Ray, without a cluster: what is asked of it, and what is refused before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmsys_exp.cli.main import run
from llmsys_exp.cli.sweep_who import who_runs
from llmsys_exp.errors import UserError
from llmsys_exp.launch.ports import free_port
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.ledger.ledger import FAILED, RUNNING
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.ray import cluster
from llmsys_exp.sweeps.ray.files import ask_driver, cancel_file, driver_file, is_driver
from llmsys_exp.sweeps.ray.options import RayOptions, parse_ray
from llmsys_exp.sweeps.ray.task import node_of
from llmsys_exp.sweeps.running.job import LIFELINE
from llmsys_exp.sweeps.running.lease import Leases, Slot
from llmsys_exp.sweeps.running.size import JobSize, JobSizes, check_room
from llmsys_exp.sweeps.slurm.array import Task
from planner.units import GIB

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`")
STANDIN = Path(__file__).parents[1] / "sweep_standin.py"


def sweep_of(folder: Path, *points: tuple[str, ...]) -> tuple[SweepPaths, Sweep]:
    numbered = [Point(number, f"{number:016x}", own) for number, own in enumerate(points, start=1)]
    return create_sweep(folder, "near", "train", base=("hardware=cpu",), points=numbered, options={})


def test_options_are_read() -> None:
    read = parse_ray("address=10.0.0.1:6379,num_cpus=4,memory_gib=32,accelerator_type=H200,autoscale=true")
    assert read == RayOptions("10.0.0.1:6379", 4, 32, "H200", True)
    assert parse_ray("address=auto") == RayOptions()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adress=auto", "'adress' is not a known option of Ray"),
        ("num_cpus", "num_cpus has no value"),
        ("num_cpus=0", "num_cpus=0 is no whole number above 0"),
        ("memory_gib=much", "memory_gib=much is no whole number above 0"),
        ("autoscale=maybe", "autoscale=maybe is neither true nor false"),
        ("address=ray://head:10001", "A sweep is not run through Ray Client"),
    ],
)
def test_what_is_no_option_is_refused(text, said) -> None:
    with pytest.raises(UserError, match=said):
        parse_ray(text)


def test_without_ray_one_message_says_how_to_install_it(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("llmsys_exp.sweeps.ray.options.find_spec", lambda name: None)
    command = ["sweep", "run", "seed=1,2", "gate=off", f"paths.outputs={tmp_path}", "--ray", "address=auto"]
    assert run(command) == 2
    assert "The package ray is not installed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@NEEDS_RAY
@pytest.mark.parametrize("more", [("--pack",), ("--slurm", "time=3")], ids=["pack", "slurm"])
def test_what_does_not_go_together_is_refused(more, monkeypatch, capsys) -> None:
    monkeypatch.setattr("llmsys_exp.cli.sweep_go.check_slurm", lambda how: how)
    assert run(["sweep", "run", "seed=1,2", "--ray", "address=auto", *more]) == 2
    assert f"{more[0]} does not go with --ray" in capsys.readouterr().err


@NEEDS_RAY
def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path, capsys) -> None:
    paths, _ = sweep_of(tmp_path, ("seed=1",))
    began = time.monotonic()
    assert run(["sweep", "resume", str(paths.folder), "--ray", f"address=127.0.0.1:{free_port()}"]) == 2
    assert time.monotonic() - began < 30
    assert "There is no Ray cluster to run on" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--detach",)], ids=["here", "detached"])
def test_a_sweep_that_no_cluster_takes_leaves_no_folder(more, tmp_path, monkeypatch, capsys) -> None:
    @contextmanager
    def refused(options: RayOptions) -> Iterator[str]:
        assert list(tmp_path.glob("*/*-sweep-*"))
        raise UserError("There is no Ray cluster to run on")
        yield ""

    monkeypatch.setattr("llmsys_exp.cli.sweep_ray.require_ray", lambda: None)
    monkeypatch.setattr("llmsys_exp.cli.sweep_ray.connected", refused)
    asked = ["hardware=cpu", "gate=off", "seed=1,2", f"paths.outputs={tmp_path}"]
    assert run(["sweep", "run", *asked, "--ray", f"address=127.0.0.1:{free_port()}"]) == 2
    assert "Nobody answers there" in capsys.readouterr().err
    assert run(["sweep", "run", *asked, "--ray", "address=auto", *more]) == 2
    assert "There is no Ray cluster" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sizes_are_those_of_the_settings(tmp_path) -> None:
    many = ("hardware=h100", "hardware.gpus_per_node=4")
    paths, sweep = sweep_of(tmp_path, ("seed=1",), many, ("hardware.gpus_per_node=2",), (*many, "seed=2"))
    states = sweep.ledger(paths).states()
    assert JobSizes(sweep).left(states) == {JobSize(0, 1): 1, JobSize(4, 4): 2, JobSize(0, 2): 3}
    states[1].overrides = ("hardware.nodes=2",)
    with pytest.raises(UserError, match="asks for several machines"):
        JobSizes(sweep).of(states[1])


def test_a_size_that_no_node_has_is_refused(monkeypatch) -> None:
    offers = {"a": {"CPU": 8.0, "GPU": 1.0, "memory": 4.0 * GIB}, "b": {"CPU": 2.0, "GPU": 2.0}}
    monkeypatch.setattr(cluster, "nodes", lambda: offers)
    cluster.check_sizes({JobSize(2, 2): 1, JobSize(0, 8): 2}, RayOptions())
    with pytest.raises(UserError, match="Point 3 needs 2 GPUs and 4 cores of one node"):
        cluster.check_sizes({JobSize(2, 2): 3}, RayOptions(num_cpus=4))
    with pytest.raises(UserError, match=r"and accelerator_type:H200 of one node"):
        cluster.check_sizes({JobSize(1, 1): 1}, RayOptions(accelerator_type="H200"))
    with pytest.raises(UserError, match=r"The most that a node has: 8 cores and 4\.0 GiB of memory"):
        cluster.check_sizes({JobSize(0, 1): 1}, RayOptions(memory_gib=5))
    cluster.check_sizes({JobSize(8, 8): 1}, RayOptions(autoscale=True))


def test_gpus_that_this_machine_will_never_have_are_refused_at_once(tmp_path) -> None:
    leases = Leases([Slot("gpu-a", "0"), Slot("gpu-b", "1")], tmp_path / "two")
    check_room(leases, {JobSize(2, 2): 1, JobSize(0, 8): 2}, "train")
    with pytest.raises(UserError, match="Point 3 needs 4 GPUs, and this machine offers 2"):
        check_room(leases, {JobSize(4, 4): 3}, "infer")
    without = Leases([Slot("core-0", "0")], tmp_path / "none")
    check_room(without, {JobSize(1, 1): 1}, "infer")
    with pytest.raises(UserError, match="Point 1 needs 1 GPU, and this machine offers 0"):
        check_room(without, {JobSize(1, 1): 1}, "train")


def test_a_job_whose_starter_is_gone_stops_by_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths, sweep = create_sweep(
        Path("out"), "near", "train", base=(), points=[Point(1, "1", ("name=held",))], options={}
    )
    hold, line = os.pipe()
    job = subprocess.Popen(
        [sys.executable, str(STANDIN), str(paths.folder), "1"],
        env={**os.environ, LIFELINE: str(hold)},
        pass_fds=(hold,),
        stdout=subprocess.DEVNULL,
    )
    ledger, end = sweep.ledger(paths), time.monotonic() + 30
    while "folder" not in ledger.states()[1].fields:
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.02)
    os.close(line)
    assert job.wait(timeout=30) == 130
    now = ledger.states()[1]
    assert (now.state, now.fields["kind"]) == (FAILED, "stopped")
    os.close(hold)


def test_status_says_who_runs_a_sweep(tmp_path) -> None:
    paths, sweep = sweep_of(tmp_path, ("seed=1",), ("seed=2",))
    ledger = sweep.ledger(paths)
    ledger.move(1, RUNNING, host="elsewhere", lease=["ray-abc", "gpu-0"])
    states = ledger.states()
    assert node_of(states[1]) == "abc" and node_of(states[2]) is None
    assert who_runs(paths, None, {}, states) == []
    assert who_runs(paths, 7, {}, states) == ["process 7 runs it"]
    tasks = {1: Task("5_0", "RUNNING"), 2: Task("5_1", "PENDING")}
    (said,) = who_runs(paths, None, tasks, states)
    assert said == "Slurm runs it: 1 running, 1 pending (point 1 is task 5_0, point 2 is task 5_1)"
    assert "cannot be asked" in who_runs(paths, None, None, states)[0]
    driver_file(paths).parent.mkdir()
    driver_file(paths).write_text(json.dumps({"pid": 7, "host": "head", "address": "h:1"}))
    assert who_runs(paths, 7, {}, states) == ["process 7 on head runs it on Ray at h:1: 1 run, 1 wait"]
    assert is_driver(paths, 7) and not is_driver(paths, 8)
    ask_driver(paths)
    assert cancel_file(paths).exists()
