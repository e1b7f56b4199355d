"""A real Ray, of one machine: points as tasks, and what becomes of them when worker, driver or node are killed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_jobs import ROOT, environment

from llmsys_exp.launch.ports import free_port
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, create_sweep
from llmsys_exp.sweeps.ledger.ledger import PointState
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running.processes import TAG

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`"),
]
ONE_GPU = ("hardware=h100", "hardware.gpus_per_node=1")


@dataclass
class Cluster:
    """Nodes of a Ray of our own, all on this machine."""

    folder: Path
    address: str
    env: dict[str, str]
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)
    """Nodes and drivers."""

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a node; Ray gives one up that takes 30 s, which a busy machine may need."""
        for _ in range(3):
            node, told = self._try(*options)
            if node.poll() is None:
                return node
        raise AssertionError(told.read_text())

    def _try(self, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block"]
        told = self.folder / f"start-{len(self.processes)}.txt"
        with told.open("wb") as log:
            quiet = ("--disable-usage-stats", "--object-store-memory=80000000")
            node = subprocess.Popen(
                [*command, *quiet], env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(node)
        wait_until(lambda: "Ray runtime started" in told.read_text() or node.poll() is not None)
        return node, told

    def stop(self) -> None:
        for process in reversed(self.processes):
            kill_tree(process)
        # daemons of a start that was given up; their arguments name our folder
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(self.folder) in word for word in one.cmdline()):
                    one.kill()


def kill_tree(process: subprocess.Popen[Any]) -> None:
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # sockets need a short path
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        outside = {key: value for key, value in environment().items() if not key.startswith("RAY_")}
        env = {**outside, "RAY_AUTH_MODE": "disabled", "HOME": folder, "RAY_TMPDIR": folder}
        made = Cluster(Path(folder), f"127.0.0.1:{free_port()}", env)
        port = made.address.rpartition(":")[2]
        try:
            made.start(
                *("--head", "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}"),
                *("--num-cpus=3", "--num-gpus=2", "--include-dashboard=false", "--no-monitor"),
            )
            yield made
        finally:
            made.stop()


def wait_until(happened: Callable[[], Any], seconds: float = 90.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@dataclass
class Drill:
    """A sweep and its drivers."""

    paths: SweepPaths
    sweep: Sweep
    cluster: Cluster

    def driver(self, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "tests/ray_driver.py"), str(self.paths.folder), *flags]
        driver = subprocess.Popen(
            [*command, "--ray", f"address={self.cluster.address}"],
            env=self.cluster.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.cluster.processes.append(driver)
        return driver

    def states(self) -> dict[int, PointState]:
        return self.sweep.ledger(self.paths).states()

    def words(self) -> list[str]:
        return [f"{now.state} {now.fields.get('kind', '')} {now.attempt}" for now in self.states().values()]

    def running(self, *numbers: int) -> bool:
        """Whether the jobs of points have claimed them and made their run folders."""
        found = self.states()
        return all(
            found[number].state == "running" and "folder" in found[number].fields for number in numbers
        )

    def left(self) -> list[psutil.Process]:
        """Return what still runs of it."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(TAG, "").startswith(f"{self.sweep.id}/"):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def drill_of(cluster: Cluster, *points: tuple[str, ...]) -> Drill:
    numbered = [Point(number, f"{number:016x}", own) for number, own in enumerate(points, start=1)]
    made = create_sweep(Path("out"), "drill", "train", base=("hardware=cpu",), points=numbered, options={})
    return Drill(*made, cluster)


def worker_of(now: PointState) -> psutil.Process:
    """Return Ray's worker above a job."""
    above = psutil.Process(now.fields["pid"]).parents()
    return next(process for process in above if process.cmdline()[0].startswith("ray::"))


def test_points_go_on_after_the_death_of_worker_and_driver(cluster, tmp_path, monkeypatch, capfd) -> None:
    from llmsys_exp.cli.main import run

    monkeypatch.chdir(tmp_path)
    drill = drill_of(cluster, ("name=held", *ONE_GPU), ("name=held", *ONE_GPU), ("name=ok",), ("name=fail",))
    first = drill.driver()
    wait_until(lambda: drill.running(1, 2) and drill.states()[4].state == "failed")
    assert run(["sweep", "status", str(drill.paths.folder), "--all"]) == 4
    said = " ".join(capfd.readouterr().out.split())
    port = cluster.address.rpartition(":")[2]
    assert f"process {first.pid} on" in said and "runs it on Ray at" in said, said
    assert f":{port}: 2 run, 0 wait" in said

    worker_of(drill.states()[1]).kill()
    wait_until(lambda: drill.states()[1].attempt == 2 and drill.running(1, 2))
    assert drill.states()[2].attempt == 1

    # from another terminal
    run(["sweep", "cancel", str(drill.paths.folder)])
    output = first.communicate(timeout=60)[0]
    assert first.returncode == 130, output
    assert "Traceback" not in output
    assert drill.words() == ["failed stopped 2", "failed stopped 1", "done  1", "failed oom_gpu 1"]
    assert not drill.left()

    second = drill.driver()
    wait_until(lambda: drill.running(1, 2))
    second.kill()
    wait_until(lambda: drill.words()[:2] == ["failed stopped 3", "failed stopped 2"])
    wait_until(lambda: not drill.left())

    Path("open").touch()
    third = drill.driver()
    output = third.communicate(timeout=60)[0]
    assert third.returncode == 4, output
    assert drill.words() == ["done  4", "done  3", "done  1", "failed oom_gpu 1"]
    seen = {number: seen_by(now) for number, now in drill.states().items() if now.state == "done"}
    assert {seen[number]["gpus"] for number in (1, 2)} == {"0", "1"}
    assert all(now.fields["lease"][0].startswith("ray-") for now in drill.states().values())


def seen_by(now: PointState) -> dict[str, Any]:
    return json.loads((Path(now.fields["folder"]) / "seen.json").read_text())


def test_a_point_that_no_node_has_room_for_is_refused_at_once(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    drill = drill_of(cluster, ("name=ok",), ("name=ok", "hardware=h100", "hardware.gpus_per_node=4"))
    done = drill.driver()
    output = " ".join(done.communicate(timeout=60)[0].split())
    assert done.returncode == 2 and "Traceback" not in output
    assert "Point 2 needs 4 GPUs and 4 cores of one node" in output and "2 GPUs and 3 cores" in output
    assert drill.words() == ["planned  0", "planned  0"]
