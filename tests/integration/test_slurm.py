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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import ROOT, environment, make_model

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
STEPS = 150
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


def run(*command: Any, env: dict[str, str], timeout_s: int = 60) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def wait_until(happened: Callable[[], Any], *, within_s: float) -> Any:
    end = time.monotonic() + within_s
    while not (found := happened()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def train(ranks: int, *more: Any) -> list[str]:
    """Return arguments of `llmsys train` for a tiny model and many steps."""
    return [
        *("model=local", "hardware=cpu", f"hardware.gpus_per_node={ranks}", "method=full", "zero.stage=2"),
        *("training.dtype=fp32", "training.micro_batch=1", "training.grad_accum=1", "training.epochs=1000"),
        *(f"training.max_steps={STEPS}", "training.evaluate=false", "training.log_every=1"),
        *("data.limit=8", "data.max_length=64", "steps=[train]", "gate=off", *map(str, more)),
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


def test_a_job_that_is_told_to_stop_saves_goes_back_to_the_queue_and_goes_on(slurm, model, tmp_path) -> None:
    log, outputs = tmp_path / "log.txt", tmp_path / "outputs"
    options = ("--parsable", "--cpus-per-task=2", "--time=10", f"--output={log}", f"--chdir={ROOT}")
    job = train(2, f"model.path={model}", "name=requeued")
    env = slurm | {"LLMSYS_OUTPUTS": str(outputs)}
    done = run("sbatch", *options, TRAIN_SCRIPT, *job, env=env)
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()

    def metrics() -> list[Path]:
        return [one for one in outputs.glob(f"slurm-{number}/requeued/*/metrics.jsonl") if one.stat().st_size]

    def state() -> str:
        return job_facts(number, slurm)["JobState"]

    def has_ended() -> bool:
        return state() in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

    wait_until(lambda: metrics() or has_ended(), within_s=120)
    # the script and all that it has started, as at a preemption; at the time limit the script alone hears of it
    run("scancel", "--full", "--signal=TERM", number, env=slurm)
    wait_until(has_ended, within_s=170)
    text = log.read_text(encoding="utf-8")
    assert state() == "COMPLETED", text[-3000:]
    assert job_facts(number, slurm)["Restarts"] == "1", text[-3000:]
    (folder,) = (one.parent for one in metrics())
    (resumed_from,) = json.loads((folder / "results/train.json").read_text(encoding="utf-8"))["resumed_from"]
    assert 0 < resumed_from < STEPS and f"Going on after step {resumed_from} in" in text
    assert steps_of(folder) == list(range(1, STEPS + 1))
    assert (folder / "manifest.json").is_file()


@pytest.mark.skipif(find_spec("submitit") is None, reason="needs the extra `slurm`")
def test_points_of_a_sweep_run_as_an_array_and_one_whose_time_is_up_goes_on(slurm, model, tmp_path) -> None:
    asked = train(1, f"model.path={model}", "training.learning_rate=1e-3,1e-2", "name=far")
    outputs = tmp_path / "outputs"
    command = ["llmsys", "sweep", "run", *asked, f"paths.outputs={outputs}", "--json"]
    done = run(*command, "--slurm", "time=30,cpus_per_task=1", env=slurm)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    sweep, tasks = Path(told["folder"]), told["tasks"]
    assert list(tasks) == ["1", "2"]

    def folder_of(point: int) -> Path | None:
        state = ledger()[point]
        found = Path(state.get("folder", "/none"))
        return found if (found / "metrics.jsonl").is_file() else None

    def ledger() -> dict[int, dict[str, Any]]:
        shown = json.loads(run("llmsys", "sweep", "status", sweep, "--json", env=slurm).stdout)
        return {point["point"]: point for point in shown["points"]}

    wait_until(lambda: folder_of(1), within_s=120)
    # what Slurm does itself some time before the limit
    run("scancel", "--signal=USR2", tasks["1"], env=slurm)
    # a second one finds nothing to submit
    again = run("llmsys", "sweep", "resume", sweep, "--json", env=slurm)
    assert json.loads(again.stdout)["tasks"] == {}, again.stderr
    ended = run("llmsys", "sweep", "wait", sweep, "--timeout", "160", env=slurm, timeout_s=170)
    assert ended.returncode == 0, ended.stdout + (sweep / "points/1.txt").read_text(encoding="utf-8")[-3000:]
    assert [point["state"] for point in ledger().values()] == ["done", "done"]
    for point in (1, 2):
        assert steps_of(folder_of(point)) == list(range(1, STEPS + 1))
    results = json.loads((folder_of(1) / "results/train.json").read_text(encoding="utf-8"))
    assert len(results["resumed_from"]) == 1
