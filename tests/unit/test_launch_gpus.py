"""GPUs, machines and the launcher of a job: found, checked, and named the same way by everybody."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.launch import TrainJob, get_launcher, over_ssh
from llmsys_exp.launch.environment import worker_variables
from llmsys_exp.launch.gpus import Card, as_indices, parse_listing, pick_gpus, visible_entries
from llmsys_exp.launch.nodes import Nodes, expand_nodelist, find_nodes, read_hostfile
from llmsys_exp.launch.place import choose_launcher, find_place
from llmsys_exp.launch.ports import free_port, is_free

FOUR = [Card(index, f"GPU-{index}{index}{index}{index}") for index in range(4)]
SLICED = [Card(0, "GPU-0000"), Card(0, "MIG-aaaa"), Card(0, "MIG-bbbb"), Card(1, "GPU-1111")]
LISTING = """GPU 0: NVIDIA H200 (UUID: GPU-0000)
  MIG 1g.18gb     Device  0: (UUID: MIG-aaaa)
  MIG 1g.18gb     Device  1: (UUID: MIG-bbbb)
GPU 1: NVIDIA H200 (UUID: GPU-1111)
"""


def job(**changes: Any) -> TrainJob:
    made = TrainJob(Path("/runs/x"), python="/env/bin/python", device="cuda", ranks=2, port=12345)
    return replace(made, **changes)


def config_for(**changes: Any) -> Config:
    config = Config()
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    return config


def hostfile(tmp_path: Path, text: str = "gpu1 slots=4\n# spare\n\ngpu2 slots=4\n") -> str:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_listing_of_nvidia_smi_is_read_with_its_slices() -> None:
    assert parse_listing(LISTING) == SLICED


@pytest.mark.parametrize(
    ("variable", "cards", "expected"),
    [
        pytest.param(None, FOUR, ("0", "1", "2", "3"), id="all"),
        pytest.param(None, None, None, id="nothing known"),
        pytest.param("2,3", FOUR, ("2", "3"), id="numbers"),
        pytest.param("2, 7,3", FOUR, ("2",), id="ends at the first that is not there"),
        pytest.param("-1", FOUR, (), id="all hidden"),
        pytest.param("", FOUR, (), id="empty hides all"),
        pytest.param("GPU-22,GPU-33", FOUR, ("GPU-22", "GPU-33"), id="shortened names"),
        pytest.param("MIG-bbbb", SLICED, ("MIG-bbbb",), id="slice"),
        pytest.param("MIG-cccc", SLICED, (), id="slice that is gone"),
        pytest.param("5", None, ("5",), id="believed where nothing is known"),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_show(variable, cards, expected) -> None:
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_entries(env, cards) == expected


def test_the_first_visible_gpus_are_taken() -> None:
    assert pick_gpus(2, asked=[], env={"CUDA_VISIBLE_DEVICES": "3,1,0"}, cards=FOUR) == ("3", "1")
    assert pick_gpus(2, asked=[], env={}, cards=None) == ("0", "1")


@pytest.mark.parametrize(
    ("count", "asked", "variable", "cards", "expected"),
    [
        (2, [], "3", FOUR, r"needs 2 GPUs .* 1 is visible \(CUDA_VISIBLE_DEVICES=3\): 3.*gpus_per_node=1"),
        (5, [], None, FOUR, "needs 5 GPUs of each node, and 4 are visible: 0, 1, 2, 3"),
        (1, [], "", FOUR, "none is visible"),
        (2, [0, 1], "2,3", FOUR, "names GPU 0, and 2 are visible.*Change CUDA_VISIBLE_DEVICES"),
        (1, [-1], None, None, "names GPU -1, and none is visible"),
        (1, [9], None, FOUR, "names GPU 9.*Name others"),
        (2, [1], None, FOUR, "names 1 GPUs and the job uses 2"),
        (2, [1, 1], None, FOUR, "names 1 GPUs and the job uses 2"),
        (2, [], "MIG-aaaa,MIG-bbbb", SLICED, "shows a process one slice"),
    ],
)
def test_gpus_that_are_not_there_are_refused_before_the_start(count, asked, variable, cards, expected):
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    with pytest.raises(UserError, match=expected):
        pick_gpus(count, asked=asked, env=env, cards=cards)


def test_gpus_that_are_asked_for_may_be_visible_by_another_name() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "GPU-2222,GPU-3333"}
    assert pick_gpus(1, asked=[3], env=env, cards=FOUR) == ("3",)
    assert as_indices(["GPU-2222", "1"], FOUR) == ("2", "1")
    assert as_indices(["MIG-aaaa"], SLICED) is None


def test_the_runner_gets_gpus_by_number_and_never_sees_the_variable() -> None:
    launcher = get_launcher("deepspeed")
    command = launcher.command(job(gpus=("2", "3")))
    assert command[command.index("--include") + 1] == "localhost:2,3"
    assert "--num_gpus" not in command
    assert "CUDA_VISIBLE_DEVICES" in launcher.hides and "CUDA_VISIBLE_DEVICES" not in launcher.env(job())
    with pytest.raises(UserError, match=r"takes GPUs by number.*MIG-aaaa.*launcher=torchrun"):
        launcher.command(job(ranks=1, gpus=("MIG-aaaa",)))


def test_other_launchers_name_gpus_in_the_variable() -> None:
    assert get_launcher("torchrun").env(job(gpus=("GPU-22", "GPU-33"))) == {
        "CUDA_VISIBLE_DEVICES": "GPU-22,GPU-33"
    }
    assert get_launcher("local").env(job(ranks=1, gpus=("3",)))["CUDA_VISIBLE_DEVICES"] == "3"
    assert "--standalone" in get_launcher("torchrun").command(job())


def test_threads_of_gpu_ranks_are_shared_out_and_the_users_stay(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    plain = worker_variables(config_for(), {}, python=sys.executable, device="cuda", ranks=2)
    assert (plain["OMP_NUM_THREADS"], plain["CUDA_DEVICE_ORDER"]) == ("8", "PCI_BUS_ID")
    from llmsys_exp.config.schema import Device

    offloaded = config_for(offload__optimizer=Device.cpu)
    assert (
        worker_variables(offloaded, {}, python=sys.executable, device="cuda", ranks=2)["OMP_NUM_THREADS"]
        == "32"
    )
    mine = {"OMP_NUM_THREADS": "3"}
    assert "OMP_NUM_THREADS" not in worker_variables(
        config_for(), mine, python=sys.executable, device="cuda", ranks=2
    )


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("n[1,3]-ib", ["n1-ib", "n3-ib"]),
    ],
)
def test_node_lists_of_slurm_are_written_out(listed, names) -> None:
    assert list(expand_nodelist(listed)) == names


def test_scontrol_is_asked_where_there_is_one(tmp_path, monkeypatch) -> None:
    fake = tmp_path / "scontrol"
    fake.write_text('#!/bin/sh\ntest "$*" = "show hostnames odd" && printf "b\\na\\n"\n', encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_nodes(config_for(hardware__nodes=2), {"SLURM_JOB_NODELIST": "odd"})
    assert found == Nodes(("b", "a"), "slurm", "", "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1 4\n", r"'gpu1 4' is no line of a hostfile \(.*:1\).*gpu1 slots=4"),
        ("gpu1 slots=4\ngpu1 slots=4\n", r"gpu1 is listed twice \(.*:2\)"),
        ("# nothing\n", "names no machine"),
    ],
)
def test_a_wrong_hostfile_is_explained_with_its_line(tmp_path, text, expected) -> None:
    with pytest.raises(UserError, match=expected):
        read_hostfile(Path(hostfile(tmp_path, text)))


def test_several_machines_come_from_the_hostfile(tmp_path) -> None:
    config = config_for(hardware__nodes=2, hardware__gpus_per_node=4, launcher__hostfile=hostfile(tmp_path))
    assert find_nodes(config, {}).hosts == ("gpu1", "gpu2")
    config.hardware.gpus_per_node = 8
    with pytest.raises(UserError, match="wants 8 GPUs of each machine, and gpu1 has 4 slots"):
        find_nodes(config, {})
    config.hardware.nodes = 3
    with pytest.raises(UserError, match="spans 3 machines, and the hostfile names 2"):
        find_nodes(config, {})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, r"spans 2 machines, and which ones is not known.*launcher\.hostfile"),
        ({"SLURM_JOB_NODELIST": "gpu1"}, "the Slurm allocation holds 1: gpu1"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, "started 4 times by srun"),
    ],
)
def test_machines_that_are_missing_are_refused(env, expected) -> None:
    with pytest.raises(UserError, match=expected):
        find_nodes(config_for(hardware__nodes=2), env)


def test_a_shell_outside_of_the_allocation_is_sent_there() -> None:
    outside = {"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_JOB_ID": "7"}
    with pytest.raises(UserError, match=r"given gpu\[1-2\] to this job.*--nodelist=gpu1 --pty bash"):
        find_nodes(config_for(), outside)
    assert find_nodes(config_for(), {**outside, "SLURMD_NODENAME": "gpu1"}) == Nodes()
    assert find_nodes(config_for(), {**outside, "SLURM_JOB_NODELIST": socket.gethostname()}) == Nodes()


def test_under_slurm_each_task_starts_an_agent_with_its_number() -> None:
    nodes = Nodes(("gpu1", "gpu2"), "slurm", "", "gpu1")
    command = get_launcher("torchrun").command(job(nodes=nodes))
    assert command[:5] == ["srun", "--nodes", "2", "--ntasks", "2"]
    assert command[-1].startswith("exec /env/bin/python -m torch.distributed.run --nnodes 2")
    assert '--node_rank "$SLURM_NODEID" --master_addr gpu1 --master_port 12345' in command[-1]
    # else it waits for ever within `srun --pty bash`
    assert "--overlap" in command
    with pytest.raises(UserError, match="here Slurm gives them"):
        get_launcher("deepspeed").command(job(nodes=nodes))


def test_auto_takes_the_launcher_that_can_start_the_job(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("llmsys_exp.launch.place.shutil.which", lambda name: None)
    assert choose_launcher(config_for())[0] == "local"
    assert choose_launcher(config_for(hardware__gpus_per_node=2))[0] == "torchrun"
    assert choose_launcher(config_for(hardware__nodes=2))[0] == "torchrun"
    several = config_for(hardware__nodes=2, launcher__hostfile=hostfile(tmp_path))
    name, why = choose_launcher(several)
    assert name == "torchrun" and "pdsh" in why
    monkeypatch.setattr("llmsys_exp.launch.place.shutil.which", lambda name: f"/bin/{name}")
    assert choose_launcher(several)[0] == "deepspeed"


def test_a_machine_without_a_gpu_and_a_taken_port_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("llmsys_exp.launch.place.installed_cards", lambda: None)
    monkeypatch.setattr("llmsys_exp.launch.place.machine_has_gpus", lambda: False)
    with pytest.raises(UserError, match="This machine has no GPU"):
        find_place(config_for(), device="cuda", env={})
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(UserError, match=f"Port {port} is in use"):
            find_place(config_for(launcher__master_port=port), device="cpu", env={})
    assert is_free(free_port())


PROBE = """
import json, os, sys
from unittest import mock
from deepspeed.launcher import runner

seen, real = [], runner.subprocess.Popen
def start(command, env=None, **options):
    if command[0] == "ssh":
        return real(command, env=env, **options)
    seen.append((command, env))
    return mock.Mock(returncode=0)
with mock.patch.object(runner.subprocess, "Popen", start), mock.patch.object(runner.signal, "signal"):
    for line in json.load(sys.stdin):
        runner.main(line)
hosts = runner.fetch_hostfile(sys.argv[1])
print(json.dumps({"commands": [command for command, _ in seen], "hosts": hosts,
                  "visible": [env.get("CUDA_VISIBLE_DEVICES") for _, env in seen]}))
"""


@pytest.mark.engine
def test_the_real_runner_takes_our_command_lines(tmp_path) -> None:
    """DeepSpeed's own parser and planner of commands, with nothing started at the end."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("pdsh", "ssh"):
        (fake / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (fake / name).chmod(0o755)
    hosts = hostfile(tmp_path)
    there = Nodes(("gpu1", "gpu2"), "hostfile", hosts, "gpu1")
    here = Nodes(("localhost",), "hostfile", hostfile_of_localhost(tmp_path), "127.0.0.1")
    jobs = [
        job(device="cpu", nodes=here),
        job(device="cuda", nodes=there, gpus=("2", "3"), folder=tmp_path / "a run"),
    ]
    lines = [get_launcher("deepspeed").command(one)[3:] for one in jobs]
    (tmp_path / "env").write_text("WORD=x\n", encoding="utf-8")
    env = os.environ | {"DS_ACCELERATOR": "cpu", "DS_ENV_FILE": str(tmp_path / "env")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, hosts],
        input=json.dumps(lines),
        env=env | {"PATH": f"{fake}:{env['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    local, remote = said["commands"]
    assert "deepspeed.launcher.launch" in local and local[-2:] == ["llmsys_exp.workers.train", "/runs/x"]
    assert world_of(local) == {"localhost": [0, 1]}
    assert remote[0] == "pdsh" and remote[remote.index("-w") + 1] == "gpu1,gpu2"
    assert world_of(remote) == {"gpu1": [2, 3], "gpu2": [2, 3]}
    assert any("export WORD=x;" in word for word in remote)
    assert said["hosts"] == read_hostfile(Path(hosts))


def hostfile_of_localhost(tmp_path: Path) -> str:
    path = tmp_path / "one"
    path.write_text("localhost slots=2\n", encoding="utf-8")
    return str(path)


def world_of(command: list[str]) -> dict[str, list[int]]:
    import base64

    (coded,) = (word for word in command if word.startswith("--world_info="))
    return json.loads(base64.urlsafe_b64decode(coded.partition("=")[2]))


def fake_ssh(tmp_path: Path, monkeypatch) -> None:
    """An ssh that runs the line on this machine and says for whom."""
    fake = tmp_path / "ssh"
    fake.write_text('#!/bin/sh\nfor line; do :; done\nexec sh -c "$line"\n', encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_over_ssh_runs_everywhere_with_number_and_variables(tmp_path, monkeypatch, capfd) -> None:
    fake_ssh(tmp_path, monkeypatch)
    arguments = ["--hosts", "a,b", "--env=WORD=two words", "--", "sh", "-c", "echo {node_rank} $WORD"]
    assert over_ssh.main(arguments) == 0
    assert sorted(capfd.readouterr().out.split("\n"))[1:] == ["0 two words", "1 two words"]


def test_over_ssh_ends_the_others_when_one_fails(tmp_path, monkeypatch) -> None:
    fake_ssh(tmp_path, monkeypatch)
    line = "test {node_rank} = 1 && exit 7; sleep 60"
    assert over_ssh.main(["--hosts", "a,b", "--", "sh", "-c", line]) == 7


def test_other_machines_get_our_search_path_and_no_secret(monkeypatch) -> None:
    from llmsys_exp.launch.environment import variables_for_others

    ours = {"PATH": "/cuda/bin:/bin", "NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "HOME": "/root"}
    sent = variables_for_others(config_for(), ours, python="/env/bin/python", device="cpu", ranks=1)
    assert sent["PATH"] == "/env/bin:/cuda/bin:/bin"
    assert sent["NCCL_DEBUG"] == "INFO"
    assert not {"HF_TOKEN", "HOME"} & set(sent)


def test_one_machine_that_is_not_this_one_is_reached_all_the_same() -> None:
    away = Nodes(("gpu1",), "hostfile", "/hosts", "gpu1")
    command = get_launcher("deepspeed").command(job(nodes=away))
    assert "--force_multi" in command and "--no_ssh_check" not in command
    assert "over_ssh" in " ".join(get_launcher("torchrun").command(job(nodes=away)))
    with pytest.raises(UserError, match="starts one process here"):
        get_launcher("local").command(job(nodes=away, ranks=1))


RANK = """
import os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
sys.stdout.write(" ".join(["rank", *(os.environ[name] for name in names), sys.argv[-1]]) + "\\n")
"""


@pytest.mark.engine
def test_two_agents_started_by_srun_really_meet(tmp_path, monkeypatch) -> None:
    """Torchrun's own agents, two on this machine, each with one rank."""
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/sh\nfor line; do :; done\n"
        'SLURM_NODEID=1 sh -c "$line" & SLURM_NODEID=0 sh -c "$line" && wait $!\n',
        encoding="utf-8",
    )
    srun.chmod(0o755)
    (tmp_path / "ranked.py").write_text(RANK, encoding="utf-8")
    nodes = Nodes(("a", "b"), "slurm", "", "127.0.0.1")
    made = job(
        **{"folder": tmp_path / "a run", "python": sys.executable, "ranks": 1, "port": free_port()},
        **{"nodes": nodes, "module": "ranked", "gpus": ("5",)},
    )
    launcher = get_launcher("torchrun")
    ours = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        launcher.command(made),
        env={**os.environ, **ours, **launcher.env(made)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank 0 2 0 0 5 {tmp_path}/a run", f"rank 1 2 0 1 5 {tmp_path}/a run"]
