"""A real Slurm, started by scripts/slurm_node.sh: two node daemons on this machine, which offer its cores each."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_image_task import write_images
from tiny_jobs import ROOT, environment

from llmsys_exp.launch import TrainJob, get_launcher
from llmsys_exp.launch.nodes import Nodes, slurm_hosts
from llmsys_exp.launch.ports import free_port

NEEDED = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts daemons of Slurm, which needs root"),
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason="needs Debian's slurm-wlm and munge"),
]
NODE_SCRIPT, TRAIN_SCRIPT = ROOT / "scripts/slurm_node.sh", ROOT / "scripts/slurm_train.sh"
STEPS = 500
"""Of milliseconds: some are left when the signal comes."""
RANK = """
import os, socket, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "SLURMD_NODENAME")
sys.stdout.write(" ".join(["rank", *(os.environ[name] for name in names), sys.argv[-1]]) + "\\n")
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Return the environment of Slurm's commands; `llmsys` is on its PATH."""
    outside = {key: value for key, value in environment().items() if not key.startswith("SLURM_")}
    # not pytest's own: munge refuses a socket below a folder that others cannot enter
    with tempfile.TemporaryDirectory(prefix="llmsys-slurm-") as folder:
        os.chmod(folder, 0o755)
        try:
            subprocess.run([str(NODE_SCRIPT), "start", folder, "2"], check=True, timeout=60)
            yield {**outside, "SLURM_CONF": f"{folder}/slurm.conf"}
        finally:
            subprocess.run([str(NODE_SCRIPT), "stop", folder], check=True, timeout=60)


def run(*command: Any, env: dict[str, str], timeout_s: int = 60) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def wait_until(happened: Callable[[], Any], *, within_s: float) -> Any:
    end = time.monotonic() + within_s
    while not (found := happened()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def train(*more: Any) -> list[str]:
    """Return arguments of `llmsys train` for a tiny perceptron and many steps."""
    return [
        *("model=mlp_fashion_mnist", "model.layers=[64,24,10]", "data=fashion_mnist_standin"),
        *("hardware=cpu", "hardware.gpus_per_node=1", "method=full", "zero.stage=1", "training.dtype=fp32"),
        *("training.micro_batch=1", "training.grad_accum=1", "training.epochs=1000", "training.log_every=1"),
        *(f"training.max_steps={STEPS}", "training.evaluate=false", "steps=[train]", "gate=off"),
        *map(str, more),
    ]


def steps_of(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def job_facts(number: str, env: dict[str, str]) -> dict[str, str]:
    words = run("scontrol", "show", "job", number, env=env).stdout.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def names(env: dict[str, str]) -> list[str]:
    return sorted(run("sinfo", "--noheader", "--Node", "--format=%N", env=env).stdout.split())


def test_agents_started_by_srun_meet_also_within_a_step_that_holds_all_cores(slurm, tmp_path) -> None:
    (tmp_path / "ranked.py").write_text(RANK, encoding="utf-8")
    hosts = tuple(names(slurm))
    nodes = Nodes(hosts, "slurm", "", "127.0.0.1")
    job = TrainJob(tmp_path / "a run", sys.executable, "cpu", 1, free_port(), nodes=nodes, module="ranked")
    launcher = get_launcher("torchrun")
    script = tmp_path / "inside.sh"
    script.write_text(f"exec {shlex.join(launcher.command(job))}\n", encoding="utf-8")
    env = slurm | {"PYTHONPATH": str(tmp_path)}
    # as `srun --pty bash` and a command typed there
    step = ("srun", "--nodes=1", "--ntasks=1", "sh", script)
    done = run("salloc", "--quiet", "--nodes=2", "--exclusive", *step, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {at} 2 0 {at} {host} {tmp_path}/a run" for at, host in enumerate(hosts)]


def test_the_list_of_nodes_is_written_out_by_slurm_itself(slurm, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    done = run("salloc", "--quiet", "--nodes=2", "printenv", "SLURM_JOB_NODELIST", env=slurm)
    assert sorted(slurm_hosts(done.stdout.strip())) == names(slurm)


def test_outside_of_the_nodes_a_job_is_refused_and_told_the_way(slurm, tmp_path) -> None:
    far = names(slurm)[-1]
    command = ["salloc", "--quiet", f"--nodelist={far}", "llmsys", "train", "steps=[train]", "hardware=cpu"]
    done = run(*command, f"paths.outputs={tmp_path / 'outputs'}", env=slurm)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    words = " ".join(done.stderr.split())
    assert f"Slurm has given {far} to this job" in words and f"--nodelist={far} --pty bash" in words
    assert not (tmp_path / "outputs").exists()


def test_a_cancelled_job_saves_and_does_not_come_back(slurm, tmp_path) -> None:
    said, stand_in = tmp_path / "said.txt", tmp_path / "llmsys"
    stand_in.write_text(
        f"#!/bin/sh\ntrap 'echo saved >> {said}; exit 6' TERM\necho began >> {said}\nsleep 99 & wait\n"
    )
    stand_in.chmod(0o755)
    env = slurm | {"PATH": f"{tmp_path}:{slurm['PATH']}"}
    done = run("sbatch", "--parsable", "--time=10", f"--output={tmp_path}/log.txt", TRAIN_SCRIPT, env=env)
    number = done.stdout.strip()
    wait_until(said.exists, within_s=30)
    run("scancel", number, env=slurm)
    wait_until(lambda: job_facts(number, slurm)["JobState"] not in ("RUNNING", "COMPLETING"), within_s=30)
    facts = job_facts(number, slurm)
    assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
    assert said.read_text() == "began\nsaved\n"


@pytest.fixture(scope="module")
def stories(slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """Return what becomes of a job and of an array that are told to stop, both at the same time."""
    base = tmp_path_factory.mktemp("slurm")
    images = base / "images"
    images.mkdir()
    write_images(images)
    with ThreadPoolExecutor(2) as pool:
        yield {
            "job": pool.submit(stop_job, slurm, base / "job", images),
            "array": pool.submit(stop_array, slurm, base / "array", images),
        }


def stop_job(slurm: dict[str, str], base: Path, images: Path) -> tuple[str, dict[str, str], Path]:
    """Submit the script, tell it to stop, and wait for its end; return log, facts and outputs."""
    base.mkdir()
    log, outputs = base / "log.txt", base / "outputs"
    options = ("--parsable", "--cpus-per-task=1", "--time=10", f"--output={log}", f"--chdir={ROOT}")
    env = slurm | {"LLMSYS_OUTPUTS": str(outputs)}
    done = run("sbatch", *options, TRAIN_SCRIPT, *train(f"data.train={images}", "name=requeued"), env=env)
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()

    def has_ended() -> bool:
        return job_facts(number, slurm)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

    def has_begun() -> bool:
        return any(one.stat().st_size for one in outputs.glob("*/requeued/*/metrics.jsonl"))

    wait_until(lambda: has_begun() or has_ended(), within_s=120)
    # the script and all that it has started, as at a preemption; at the time limit the script alone hears of it
    run("scancel", "--full", "--signal=TERM", number, env=slurm)
    wait_until(has_ended, within_s=150)
    return log.read_text(encoding="utf-8"), job_facts(number, slurm), outputs / f"slurm-{number}"


def test_a_job_that_is_told_to_stop_saves_goes_back_to_the_queue_and_goes_on(stories) -> None:
    text, facts, outputs = stories["job"].result()
    assert facts["JobState"] == "COMPLETED" and facts["Restarts"] == "1", text[-3000:]
    (folder,) = outputs.glob("requeued/*")
    (resumed_from,) = json.loads((folder / "results/train.json").read_text(encoding="utf-8"))["resumed_from"]
    assert 0 < resumed_from < STEPS and f"Going on after step {resumed_from} in" in text
    assert steps_of(folder) == list(range(1, STEPS + 1))
    assert (folder / "manifest.json").is_file()


def stop_array(slurm: dict[str, str], base: Path, images: Path) -> dict[str, Any]:
    """Submit a sweep, let the time of its first point be up, and wait for its end; return what was said."""
    base.mkdir()
    # the second one is refused before torch is loaded
    asked = train(f"data.train={images},{base}/none", "name=far", f"paths.outputs={base}/outputs")
    done = run("llmsys", "sweep", "run", *asked, "--json", "--slurm", "time=30,cpus_per_task=1", env=slurm)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    sweep, tasks = Path(told["folder"]), told["tasks"]

    def folder_of(point: int) -> Path | None:
        shown = json.loads(run("llmsys", "sweep", "status", sweep, "--json", env=slurm).stdout)
        found = Path(shown["points"][point - 1].get("folder", "/none"))
        return found if (found / "metrics.jsonl").is_file() else None

    queued = run("llmsys", "sweep", "status", sweep, env=slurm)
    folder = wait_until(lambda: folder_of(1), within_s=120)
    # what Slurm does itself some time before the limit
    run("scancel", "--signal=USR2", tasks["1"], env=slurm)
    # a second one finds nothing to submit
    again = run("llmsys", "sweep", "resume", sweep, "--json", env=slurm)
    ended = run("llmsys", "sweep", "wait", sweep, "--json", "--timeout", "150", env=slurm, timeout_s=170)
    log = (sweep / "points/1.txt").read_text(encoding="utf-8")
    return {"tasks": tasks, "queued": queued, "again": again, "ended": ended, "folder": folder, "log": log}


@pytest.mark.skipif(find_spec("submitit") is None, reason="needs the extra `slurm`")
def test_points_of_a_sweep_run_as_an_array_and_one_whose_time_is_up_goes_on(stories) -> None:
    told = stories["array"].result()
    assert list(told["tasks"]) == ["1", "2"]
    assert json.loads(told["again"].stdout)["tasks"] == {}, told["again"].stderr
    first, second = json.loads(told["ended"].stdout)["points"]
    assert first["state"] == "done", told["log"][-3000:]
    assert steps_of(told["folder"]) == list(range(1, STEPS + 1))
    results = json.loads((told["folder"] / "results/train.json").read_text(encoding="utf-8"))
    assert len(results["resumed_from"]) == 1
    assert (second["state"], second["attempts"]) == ("failed", 1)
