"""What the doctor says of planted machines: a row a setting that does harm, and the command that mends it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmsys_exp.cli import doctor
from llmsys_exp.doctor import (
    cluster,
    compilers,
    disk,
    examine,
    gpus,
    leftovers,
    look,
    memory,
    settings,
    versions,
)
from llmsys_exp.doctor.finding import NOTE, OK, PROBLEM, Finding
from llmsys_exp.doctor.known import TRAINING, differences
from llmsys_exp.doctor.look import Look
from llmsys_exp.errors import UserError
from llmsys_exp.launch.gpus import Card
from planner.units import GIB, MIB

H200 = {
    "name": "NVIDIA H200", "memory.total": "143771 MiB", "memory.used": "4 MiB",
    "driver_version": "580.159.04", "compute_cap": "9.0", "compute_mode": "Default",
}  # fmt: skip
PACKAGES = {**TRAINING[1].versions, "safetensors": "0.8.0", "accelerate": "1.15.0", "torch": "2.11.0+cu130"}


def looking(
    *, env: dict[str, str] | None = None, cards: list[dict[str, str]] | None = None, **changes: Any
) -> Look:
    """A look at a machine that is not this one."""
    found = Look(
        env=env or {}, **{key: value for key, value in changes.items() if key in ("outputs", "python")}
    )
    installed = [Card(number, f"GPU-{number}") for number in range(len(cards or ()))]
    told = {"python": "3.11", "packages": PACKAGES, "cuda": "13.0", "nccl": "2.28", **changes.get("told", {})}
    found.__dict__.update(gpus=cards or [], cards=installed, has_driver=bool(cards), told=told)
    return found


def named(findings: Iterator[Finding], name: str) -> Finding:
    [finding] = [one for one in findings if one.name == name]
    return finding


@pytest.mark.parametrize(
    ("text", "bad"),
    [("9.0", []), ("8.0;9.0+PTX", []), ("8.0 9.0", []), (" 9.0 ", []), ("9.0a", ["9.0a"]), ("Hopper", ["Hopper"]),
     ("10.0+PTX 0a", ["0a"]), ("native", ["native"]), ("9", ["9"]), ("8.0,9.0", ["8.0,9.0"])],
)  # fmt: skip
def test_arch_lists_are_read_as_deepspeed_reads_them(text: str, bad: list[str]) -> None:
    assert settings.unread_archs(text) == bad


def test_deepspeed_still_reads_arch_lists_that_way() -> None:
    spec = find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("no deepspeed here")
    source = (Path(spec.origin).parent / "ops/op_builder/builder.py").read_text(encoding="utf-8")
    assert "tuple(int(part.split('+')[0]) for part in cc.split('.'))" in source


@pytest.mark.parametrize(
    ("env", "state", "said"),
    [
        ({"TORCH_CUDA_ARCH_LIST": "9.0a"}, PROBLEM, "DeepSpeed cannot read 9.0a"),
        ({"TORCH_CUDA_ARCH_LIST": "7.5 8.0"}, PROBLEM, "runs on compute capability 9.0"),
        ({"CUDA_VISIBLE_DEVICES": ""}, PROBLEM, "hides all 2 GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-1"}, PROBLEM, "mixes a name and a number"),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, PROBLEM, "7 is no GPU here"),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, PROBLEM, "names a GPU twice"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, NOTE, "training.expandable_segments"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, NOTE, "forecasts count with torch's defaults"),
        ({"NCCL_P2P_DISABLE": "1"}, NOTE, "through main memory"),
        ({"NCCL_SOCKET_IFNAME": "nosuch9"}, PROBLEM, "names no interface"),
        ({"OMP_NUM_THREADS": "9999"}, NOTE, "fight"),
        ({"OMP_NUM_THREADS": "many"}, PROBLEM, "is no number"),
        ({"DS_ACCELERATOR": "cpu"}, PROBLEM, "there are GPUs"),
        ({"WORLD_SIZE": "4", "RANK": "0"}, NOTE, "RANK, WORLD_SIZE set here"),
        ({"TMPDIR": "/nowhere"}, PROBLEM, "is no folder"),
        ({"TRANSFORMERS_OFFLINE": "1"}, OK, "nothing is downloaded"),
    ],
    ids=lambda value: next(iter(value.items())).__repr__() if isinstance(value, dict) else None,
)
def test_a_setting_that_does_harm_is_named_with_its_remedy(
    env: dict[str, str], state: str, said: str
) -> None:
    found = [one for one in settings.check(looking(env=env, cards=[H200, H200])) if said in one.said]
    assert [one.state for one in found] == [state]
    assert state == OK or found[0].fix
    [clean] = [one for one in settings.check(looking(cards=[H200])) if one.name == "variables"]
    assert clean.state == OK


def test_settings_of_gpus_are_notes_where_there_is_none() -> None:
    env = {"TORCH_CUDA_ARCH_LIST": "9.0a", "CUDA_VISIBLE_DEVICES": "0,GPU-x"}
    assert {one.state for one in settings.check(looking(env=env))} == {NOTE, OK}


def test_ptx_runs_on_later_cards_and_code_only_on_its_own_generation() -> None:
    def says(text: str, capability: str) -> list[str]:
        cards = [{**H200, "compute_cap": capability}]
        found = settings.check(looking(env={"TORCH_CUDA_ARCH_LIST": text}, cards=cards))
        return [one.state for one in found if one.name == "TORCH_CUDA_ARCH_LIST"]

    assert says("8.0+PTX", "9.0") == says("8.0", "8.6") == []
    assert says("8.0", "9.0") == says("9.0", "8.6") == [PROBLEM]


def test_versions_that_worked_together_are_known() -> None:
    found = list(versions.check(looking()))
    assert named(iter(found), "training-set").state == OK
    assert "H200" in named(iter(found), "training-set").said
    other = looking(told={"packages": {**PACKAGES, "transformers": "5.19.0"}})
    said = named(versions.check(other), "training-set")
    assert (said.state, "transformers 5.19.0 (then" in said.said) == (NOTE, True)
    assert differences(TRAINING[1], {"torch": "2.11.0+cu130"}) == {}


def test_missing_and_unfit_packages_are_problems() -> None:
    lacking = {name: version for name, version in PACKAGES.items() if name != "deepspeed"}
    train = named(versions.check(looking(told={"packages": lacking})), "train")
    assert (train.state, "llmsys-exp[train]" in train.fix) == (PROBLEM, True)
    old = looking(told={"packages": {**PACKAGES, "deepspeed": "0.17.0"}})
    assert named(versions.check(old), "deepspeed").state == PROBLEM
    dead = looking(told={"problem": "it does not start", "packages": {}})
    assert [one.state for one in versions.check(dead)] == [PROBLEM]


@pytest.mark.parametrize(
    ("card", "told", "name", "state", "said"),
    [
        ({}, {}, "gpu-0", OK, "hardware.gpu=h200"),
        ({"name": "NVIDIA Quadro T600"}, {}, "gpu-0", NOTE, "no row for it"),
        ({"memory.used": "80000 MiB"}, {}, "held-0", NOTE, "80,000 of 143,771 MiB"),
        ({"memory.used": "143000 MiB"}, {}, "held-0", PROBLEM, "are taken"),
        ({"compute_mode": "Prohibited"}, {}, "mode-0", PROBLEM, "takes no process"),
        ({"compute_mode": "Exclusive_Process"}, {}, "mode-0", NOTE, "no --pack"),
        ({"driver_version": "535.1"}, {}, "driver", PROBLEM, "too old for CUDA 13"),
        ({}, {"packages": {"torch": "2.13.0+cpu"}}, "torch-cuda", PROBLEM, "built without CUDA"),
        ({}, {}, "driver", OK, "NCCL 2.28"),
    ],
    ids=["known", "unknown", "shared", "full", "prohibited", "exclusive", "driver", "cpu torch", "goes together"],
)  # fmt: skip
def test_gpus(
    card: Any, told: Any, name: str, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "smi", lambda query: [{"pid": "12", "used_memory": "79000 MiB"}])
    found = named(gpus.check(looking(cards=[{**H200, **card}], told=told)), name)
    assert (found.state, said in found.said) == (state, True), found


def test_no_gpu_is_a_note_and_a_driver_that_does_not_answer_a_problem() -> None:
    assert [one.state for one in gpus.check(looking())] == [NOTE]
    broken = looking()
    broken.__dict__["has_driver"] = True
    assert [one.state for one in gpus.check(broken)] == [PROBLEM]
    sliced = looking(cards=[H200])
    sliced.__dict__["cards"] = [Card(0, "GPU-0"), Card(0, "MIG-1")]
    assert named(gpus.check(sliced), "mig").state == NOTE


def test_the_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{2 * GIB}\n", encoding="ascii")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "absent", limit))
    room = SimpleNamespace(total=64 * MIB, free=64 * MIB, used=0)
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda path: room)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (1024, 4096))
    found = {one.name: one for one in memory.check(looking(cards=[H200, H200]))}
    assert found["cgroup"].fix == "hardware.host_memory_gib=2.0"
    assert (found["shm"].state, found["nofile"].fix) == (PROBLEM, "ulimit -n 4096")
    assert named(memory.check(looking()), "shm").state == NOTE
    limit.write_text("max\n", encoding="ascii")
    assert "cgroup" not in {one.name for one in memory.check(looking())}


def test_disks_and_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "quota"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '     /dev/sda1 1048576* 900000 1048576 5 0 0'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    seen = looking(env={"HF_HOME": str(tmp_path / "file" / "hub")}, outputs=tmp_path / "new" / "outputs")
    (tmp_path / "file").write_text("", encoding="utf-8")
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(disk, "TOO_LITTLE_BYTES", 0)
    monkeypatch.setattr(disk, "LITTLE_BYTES", free + GIB)
    found = {one.name: one for one in disk.check(seen)}
    assert (found["hub"].state, found["hub"].fix) == (PROBLEM, "export HF_HOME=FOLDER")
    assert (found["outputs"].state, found["quota"].state) == (NOTE, PROBLEM)
    assert not (tmp_path / "new").exists(), "a look makes no folder"
    monkeypatch.setattr(disk, "TOO_LITTLE_BYTES", free + GIB)
    assert named(disk.check(seen), "outputs").state == PROBLEM


def test_compilers_are_needed_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "DEFAULT_HOME", tmp_path / "nowhere")
    env, python = {"PATH": str(tmp_path)}, str(tmp_path / "python")
    with_gpu = {one.name: one for one in compilers.check(looking(env=env, cards=[H200], python=python))}
    assert [with_gpu[name].state for name in ("ninja", "g++", "nvcc")] == [PROBLEM] * 3
    without = {one.name: one for one in compilers.check(looking(env=env, python=python))}
    assert [without[name].state for name in ("ninja", "g++", "nvcc")] == [NOTE, NOTE, OK]
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n", encoding="utf-8")
    nvcc.chmod(0o755)
    found = named(compilers.check(looking(env=env, cards=[H200], python=python)), "nvcc")
    assert (found.state, "CUDA 12.4 and torch of 13.0" in found.said) == (PROBLEM, True)
    bad = looking(env={**env, "CUDA_HOME": "/nowhere"}, cards=[H200], python=python)
    assert named(compilers.check(bad), "CUDA_HOME").state == PROBLEM


def test_locks_of_killed_builds_are_found(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cu130" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    seen = looking(env={"TORCH_EXTENSIONS_DIR": str(tmp_path)}, outputs=tmp_path)
    assert named(leftovers.check(seen), "build-lock").state == OK
    lock.touch()
    assert named(leftovers.check(seen), "build-lock").state == NOTE
    os.utime(lock, (time.time() - 3600,) * 2)
    found = named(leftovers.check(seen), "build-lock")
    assert (found.state, found.fix) == (PROBLEM, f"rm {lock}")
    lock.parent.rename(lock.parent.with_name("async_io"))
    assert named(leftovers.check(seen), "build-lock").state == NOTE, "most runs do not need it"
    assert named(leftovers.check(seen), "clock").state == OK


def test_a_clock_that_is_off_and_a_calibration_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.utime
    monkeypatch.setattr(leftovers.os, "utime", lambda name: real(name, (time.time() - 60,) * 2))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "llmsys").mkdir()
    (tmp_path / "llmsys" / "calibration.json").write_text("{", encoding="utf-8")
    found = {one.name: one for one in leftovers.check(looking(outputs=tmp_path))}
    assert (found["clock"].state, "-60 s off" in found["clock"].said) == (NOTE, True)
    assert found["calibration"].fix == "llmsys calibrate --remove"
    odd = looking(outputs=tmp_path, env={"LLMSYS_CALIBRATION": "maybe"})
    assert named(leftovers.check(odd), "calibration").state == PROBLEM


def test_a_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("sbatch", 0), ("sinfo", 1), ("munge", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cluster, "own_packages", dict)
    found = {one.name: one.state for one in cluster.check(looking())}
    assert found == dict.fromkeys(("slurm", "munge", "submitit", "ssh", "ray"), NOTE)


def test_a_report_comes_out_whatever_fails_and_hides_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(seen: Look) -> Iterator[Finding]:
        raise RuntimeError("no such thing")

    [finding] = examine.checked("memory", fails, looking())
    assert (finding.state, "no such thing" in finding.said) == (NOTE, True)
    home = examine._without_home({"a": ["/home/me/x", "/home/me", "/home/meg/y"]}, "/home/me")
    assert home == {"a": ["~/x", "~", "/home/meg/y"]}


def test_the_exit_code_and_the_json_say_whether_a_run_would_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examine, "CHECKS", {"settings": settings.check})
    monkeypatch.setattr(look, "smi", lambda query: [])
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert doctor.run(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == [
        *("schema_version", "counts", "findings", "machine", "versions", "engines", "inference", "gpus"),
        *("memory_bytes", "disk_bytes"),
    ]
    assert {*report["findings"][0]} == {"subject", "name", "state", "said", "fix"}
    monkeypatch.setenv("OMP_NUM_THREADS", "none")
    assert doctor.run([]) == 2
    text = capsys.readouterr().out
    assert "1 problem, " in text
    assert "fix: unset OMP_NUM_THREADS" in text
    assert "hf_0123" not in text + json.dumps(report)
    with pytest.raises(UserError, match="--jsn is not an argument"):
        doctor.run(["--jsn"])
