"""Pieces of evidence: packages, GPUs, energy, hashes, secrets, variables; each may fail and stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from llmsys_exp.config.plain import from_plain
from llmsys_exp.errors import UserError
from llmsys_exp.evidence import gpus as gpus_module
from llmsys_exp.evidence import nvml
from llmsys_exp.evidence.data_files import data_facts, data_files, data_paths
from llmsys_exp.evidence.energy import EnergyMeter
from llmsys_exp.evidence.errors import EvidenceError, noted
from llmsys_exp.evidence.files import Hashing, hash_at_once
from llmsys_exp.evidence.gpus import gpu_facts, is_among, parse_topology
from llmsys_exp.evidence.hashes import HashStore
from llmsys_exp.evidence.machine import machine_facts
from llmsys_exp.evidence.model_files import model_facts, model_files
from llmsys_exp.evidence.packages import installed, packages_hash
from llmsys_exp.evidence.secrets import (
    LEFT_OUT,
    arguments_without_secrets,
    holds_secret,
    is_secret_file,
    is_secret_name,
    without_secrets,
)
from llmsys_exp.evidence.variables import variables
from llmsys_exp.launch.environment import check_secrets, worker_variables
from llmsys_exp.runs import record
from llmsys_exp.runs.files import file_hash
from llmsys_exp.runs.paths import RunPaths

KEY, PASS, TOKEN = "hf_" + "aB3" * 12, "pass" + "word", "tok" + "en"
"""In parts, so that this very file is none that a patch leaves out."""


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    gpus_module._from_nvml.cache_clear()
    gpus_module._topology.cache_clear()


def program(folder: Path, text: str, name: str = "python") -> str:
    file = folder / name
    file.write_text(f"#!{sys.executable}\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_every_distribution_is_listed():
    found = installed()
    assert found["python"] == sys.version.split()[0] and found["executable"] == sys.executable
    assert {"pytest", "hydra-core", "pyyaml", "llmsys-exp"} <= set(found["packages"])
    assert list(found["packages"]) == sorted(found["packages"])
    other = {**found["packages"], "pytest": "0.1"}
    assert packages_hash(other) != packages_hash(found["packages"])


def test_another_interpreter_is_asked_once_and_by_itself(tmp_path: Path):
    count = tmp_path / "count"
    asked = program(
        tmp_path,
        f"import sys\nopen({str(count)!r}, 'a').write('x')\nassert sys.argv[1] == '-c'\nexec(sys.argv[2])",
    )
    first, second = installed(asked), installed(asked)
    assert first == second and first["executable"] == asked and "pytest" in first["packages"]
    first["packages"].clear()
    assert installed(asked)["packages"] and count.read_text() == "x"


@pytest.mark.parametrize("text", ["", "print('hello')", "print('[1]')", "import sys; sys.exit(3)"])
def test_an_interpreter_that_does_not_say_is_noted(tmp_path: Path, text: str):
    notes: list[str] = []
    python = program(tmp_path, text)
    assert noted(notes, "packages", lambda: installed(python), {}) == {}
    assert notes[0].startswith(f"packages: {python} did not say what it has installed")


class Library:
    """Stands in for pynvml: two cards, of which the second counts no energy."""

    def __init__(self) -> None:
        self.opened = 0
        self.joules = [1000.0, 5000.0]
        self.watts = [300.0, 100.0]
        self.used = [3 << 30, 1 << 30]

    @contextmanager
    def open(self):
        self.opened += 1
        yield self
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}abc".encode()

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=150 << 30, used=self.used[handle])

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"0000:{handle}")

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        raise RuntimeError("Not Supported")

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13020

    def nvmlDeviceGetPowerUsage(self, handle):
        return int(self.watts[handle] * 1000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle == 1:
            raise RuntimeError("Not Supported")
        return int(self.joules[handle] * 1000)


TOPOLOGY = (
    "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\n\nLegend:\n\n  X    = Self\n  GPU  = not a row\n"
)


def test_gpus_come_from_nvml(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvml, "opened", Library().open)
    monkeypatch.setattr(gpus_module, "_smi", lambda *_: TOPOLOGY)
    notes: list[str] = []
    found = gpu_facts(["GPU-1"], notes)
    assert notes == [] and (found["driver"], found["cuda_driver"]) == ("580.1", "13.2")
    assert found["topology"] == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert [card["in_run"] for card in found["gpus"]] == [False, True]
    assert found["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA H200",
        "memory_bytes": 150 << 30,
        "uuid": "GPU-1abc",
        "pci": "0000:1",
        "compute_capability": "9.0",
        "power_limit_w": None,
        "in_run": True,
    }


def test_without_nvml_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listing = "0, NVIDIA A100-SXM4-80GB, 81920, GPU-7, 00000000:07:00.0, 550.54.15"
    text = (
        "import sys\nif '--query-gpu' in str(sys.argv): print({!r})\nelse: print('| CUDA Version: 12.4  |')"
    )
    program(tmp_path, text.format(listing), "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(nvml, "opened", broken)
    notes: list[str] = []
    found = gpu_facts(["0"], notes)
    assert notes == [] and (found["driver"], found["cuda_driver"]) == ("550.54.15", "12.4")
    assert found["gpus"][0]["memory_bytes"] == 80 << 30 and found["gpus"][0]["in_run"]


@contextmanager
def broken():
    raise EvidenceError("NVML does not start: Driver Not Loaded")
    yield


def test_a_driver_that_tells_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program(tmp_path, "import sys\nsys.exit('NVIDIA-SMI has failed')", "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(nvml, "opened", broken)
    notes: list[str] = []
    assert gpu_facts([], notes) == {"gpus": [], "driver": None, "cuda_driver": None, "topology": None}
    assert notes == [
        "GPUs: nvidia-smi: NVIDIA-SMI has failed",
        "GPUs: NVML does not start: Driver Not Loaded",
    ]
    with pytest.raises(EvidenceError):
        parse_topology("")


def test_the_machine_is_told_without_its_name():
    found = machine_facts((), [])
    assert found["host_memory_bytes"] > 0 and found["cpus"] >= 1 and found["cpu_name"]
    assert os.uname().nodename not in json.dumps(found)


@pytest.mark.parametrize(
    ("index", "uuid", "entries", "named"),
    [
        (1, "GPU-a", ["1"], True),
        (1, "GPU-a", ["11"], False),
        (0, "GPU-a", ["GPU-a"], True),
        (0, "x", [""], False),
    ],
)
def test_entries_name_gpus_by_number_or_name(index, uuid, entries, named):
    assert is_among(index, uuid, entries) is named


def test_energy_is_counted_where_cards_count_and_sampled_elsewhere():
    library = Library()
    meter = EnergyMeter(["0", "1"], open_library=library.open, interval_s=0.01)
    meter.start()
    library.used[0] = 9 << 30
    time.sleep(0.1)
    library.joules[0] += 7200.0
    found = meter.stop()
    assert found is not None and library.opened == 0
    counted, sampled = found["gpus"]
    assert (counted["how"], counted["wh"], counted["highest_w"]) == ("counter", 2.0, 300.0)
    assert counted["most_used_bytes"] == 9 << 30
    # 100 W all the time
    assert sampled["how"] == "samples" and sampled["mean_w"] == pytest.approx(100, rel=0.05)
    assert found["wh"] == pytest.approx(2.0 + 100 * found["seconds"] / 3600, abs=1e-3)
    assert found["samples"] >= 4 and meter.stop() is None


def test_only_the_gpus_of_the_run_are_measured_and_slices_are_not():
    meter = EnergyMeter(["GPU-1"], open_library=Library().open, interval_s=60)
    meter.start()
    found = meter.stop()
    assert found is not None and [card["uuid"] for card in found["gpus"]] == ["GPU-1abc"]
    library = Library()
    with pytest.raises(EvidenceError, match="0 whole GPUs of MIG-x"):
        EnergyMeter(["MIG-x"], open_library=library.open).start()
    assert library.opened == 0


def test_a_card_that_tells_nothing_has_no_energy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Library, "nvmlDeviceGetPowerUsage", lambda *_: 1 / 0)
    meter = EnergyMeter(["0", "1"], open_library=Library().open, interval_s=60)
    meter.start()
    found = meter.stop()
    assert found is not None and found["wh"] is None and found["gpus"][1]["wh"] is None


def old_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    then = time.time() - 60
    os.utime(path, (then, then))
    return path


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, file = HashStore(tmp_path / "cache"), old_file(tmp_path / "a", b"one")
    digest = store.hash_of(file)
    assert digest == file_hash(file) == HashStore(tmp_path / "cache").known(file)
    file.rename(tmp_path / "b")
    file = tmp_path / "b"
    before = file.stat()
    # another row of the same length, and the time put back: what `stat` shows of the content is the same
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert store.known(file) is None and store.hash_of(file) == file_hash(file) != digest


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path):
    store, file = HashStore(tmp_path / "cache"), tmp_path / "a"
    file.write_bytes(b"one")
    assert store.hash_of(file) and store.known(file) is None


def test_without_a_store_files_are_hashed_all_the_same(tmp_path: Path):
    file = old_file(tmp_path / "a", b"one")
    (tmp_path / "taken").write_text("a file where the folder should be")
    assert HashStore(tmp_path / "taken").hash_of(file) == file_hash(file)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file-hashes-1.sqlite").write_bytes(b"no database" * 100)
    assert HashStore(tmp_path / "cache").hash_of(file) == file_hash(file)


def test_a_user_without_a_home_has_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    file = old_file(tmp_path / "a", b"one")
    assert HashStore().hash_of(file) == file_hash(file) and HashStore().known(file) is None


def test_processes_share_the_store(tmp_path: Path):
    files = [old_file(tmp_path / f"f{number}", bytes([number])) for number in range(20)]
    stores = [HashStore(tmp_path / "cache") for _ in range(4)]
    threads = [threading.Thread(target=lambda s=s: [s.hash_of(one) for one in files]) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(stores[0].known(one) == file_hash(one) for one in files)


def test_large_files_are_hashed_beside_the_run(tmp_path: Path):
    store, done = HashStore(tmp_path / "cache"), threading.Event()
    files = {"small": old_file(tmp_path / "s", b"s"), "large": old_file(tmp_path / "l", b"l" * 100)}
    files |= {"gone": tmp_path / "gone"}
    found = hash_at_once(files, store, most_bytes=50)
    assert found.facts["small"]["sha256"] and found.facts["large"] == {"sha256": None, "bytes": 100}
    assert found.facts["gone"] == {"sha256": None, "bytes": None} and "No such file" in found.problems[0]
    hashing = Hashing(store, done.set)
    hashing.add(found)
    assert hashing.finish(10) and done.wait(10)
    hashing.close()
    assert found.facts["large"]["sha256"] == file_hash(files["large"])
    # known now: not even a large one waits
    assert not hash_at_once(files, store, most_bytes=0).waiting


def test_hashing_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(_file: Path):
        begun.set()
        go_on.wait(10)
        yield b"x"

    monkeypatch.setattr("llmsys_exp.evidence.hashes.file_blocks", slow)
    found = hash_at_once({"a": old_file(tmp_path / "a", b"x" * 9)}, HashStore(tmp_path), most_bytes=0)
    called: list[int] = []
    hashing = Hashing(HashStore(tmp_path), lambda: called.append(1))
    hashing.add(found)
    assert begun.wait(10) and not hashing.finish(0)
    hashing.close()
    go_on.set()
    hashing._pool.shutdown(wait=True)
    assert not called and found.facts["a"]["sha256"] is None


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "README.md",
        "pytorch_model.bin",
        "consolidated.safetensors",
    ):
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def test_what_is_loaded_of_a_model_is_named(tmp_path: Path):
    folder = model_folder(tmp_path / "snapshots")
    inputs = {"model_folder": str(folder), "adapter_folder": None}
    config = from_plain({"model": {"id": "a/b", "path": str(folder)}})
    # neither the other formats of the same weights nor the page about them
    assert set(model_files(config, inputs)["model"]) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert model_facts(config, inputs) == {"source": str(folder), "id": "a/b", "revision": None}
    snapshot = tmp_path / "hub" / "snapshots" / "0badcafe"
    assert model_facts(config, {"model_folder": str(snapshot)})["revision"] == "0badcafe"
    random = from_plain({"seed": 7, "model": {"id": "a/b", "weights": "random"}})
    assert model_facts(random, inputs)["random_weights_seed"] == 7
    assert set(model_files(random, inputs)["model"]) == {"config.json", "tokenizer.json"}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(EvidenceError, match="missing"):
        model_files(config, inputs)


def test_files_of_the_data_are_named_by_their_role(tmp_path: Path):
    config = from_plain({})
    (tmp_path / "images").mkdir()
    for name in ("b.png", "a.png", ".hidden", "cache-1.arrow"):
        (tmp_path / "images" / name).write_text(name)
    (tmp_path / "rows.json").write_text("[]")
    inputs = {"train_file": str(tmp_path / "images"), "prompts_file": str(tmp_path / "rows.json")}
    inputs["heldout_file"] = "someone/dataset"
    paths = data_paths(config, inputs)
    files = data_files(paths)
    assert list(files) == ["train/a.png", "train/b.png", "prompts"]
    hashes = {name: {"sha256": name, "bytes": 1} for name in files}
    told = {"train": {"data": {"heldout": {"source": "someone/dataset", "sha256": "fff", "rows": 3}}}}
    data, notes = data_facts(paths, hashes, told)
    assert notes == [] and data["rows"] == {"heldout": 3}
    assert data["files"]["heldout"] == {"path": "someone/dataset", "sha256": "fff", "bytes": None}
    assert data["files"]["train/a.png"]["path"] == str(tmp_path / "images" / "a.png")


def test_data_that_changes_under_a_run_is_noted():
    told = {"train": {"data": {"train": {"source": "/r", "sha256": "new", "rows": 3}}}}
    data, notes = data_facts({"train": "/r"}, {"train": {"sha256": "old", "bytes": 9}}, told)
    assert data["files"]["train"]["sha256"] == "new" and "/r changed" in notes[0]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        (f'{PASS} = "hunter2x"', ".py"),
        (f"{PASS}: correcthorse", ".yaml"),
        (f"+DB_{PASS.upper()}=Zx81-qq", ".sh"),
        (f'{TOKEN}="a1b2c3d4e5f6g7h8i9j0"', ".py"),
        (f'{{"auth_{TOKEN}": "9f8e7d6c5b4a39281706f5e4"}}', ".json"),
        (f"login({KEY})", ".py"),
        ("AWS AKIA" + "ABCDEFGHIJKLMNOP", ""),
        ("postgres:" + "//bob:s3cr3tpw@db/x", ""),
        ("-----BEGIN OPENSSH " + "PRIVATE KEY-----", ""),
    ],
)
def test_secrets_are_seen(text: str, suffix: str):
    assert holds_secret(f"first line\n{text}\nlast line\n", suffix=suffix)


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("token = tokenizer.encode(x)", ".py"),
        ("password: str", ".py"),
        ('api_key=os.environ["X_KEY_1234567"]', ".py"),
        ('pad_token: "<|endoftext|>"', ".yaml"),
        ("max_new_tokens: 1280000000000", ".yaml"),
        ("password: ${oc.env:PW}", ".yaml"),
        ("https://user:password@host/", ""),
        ("secret = config.secret_value1", ".py"),
        ("API_KEY=your-key-here", ".env"),
        ("weights_sha256: 820f66d1a7a18935389c793d1d26087f0f1f8d07ff22ca6816e8eede59203aec", ".yaml"),
    ],
)
def test_ordinary_text_is_no_secret(text: str, suffix: str):
    assert not holds_secret(f"first line\n{text}\nlast line\n", suffix=suffix)


def test_looking_for_secrets_takes_no_quadratic_time():
    began = time.monotonic()
    for text in ("a" * 300_000, "token" * 60_000, "a://" * 75_000, "eyJ" * 100_000, "password='" * 30_000):
        holds_secret(text)
    assert time.monotonic() - began < 5


def test_names_of_secret_files_and_variables():
    for name in (
        ".env",
        "deep/.ENV",
        "a/id_rsa",
        "x.pem",
        "my_credentials.json",
        ".ssh/config",
        "secrets.yaml",
    ):
        assert is_secret_file(name), name
    for name in ("train.py", ".env.example", "tokenizer.json", "secrets.py", "monkey.py", "environment.yml"):
        assert not is_secret_file(name), name
    assert is_secret_name("HF_TOKEN") and is_secret_name("WANDB_API_KEY")
    assert not is_secret_name("TOKENIZERS_PARALLELISM") and not is_secret_name("MONKEY")


def test_settings_and_command_lines_lose_their_secrets():
    settings = {
        "launcher": {"env": {"WANDB_API_KEY": "abc", "NCCL_DEBUG": "INFO"}},
        "x": ["y", KEY],
        "key": "k",
    }
    assert without_secrets(settings) == {
        "launcher": {"env": {"WANDB_API_KEY": LEFT_OUT, "NCCL_DEBUG": "INFO"}},
        "x": ["y", LEFT_OUT],
        "key": "k",
    }
    line = ["llmsys", "+launcher.env.MY_TOKEN=abc", "launcher.env={A_KEY: x}", f"name={KEY}", "seed=3", KEY]
    assert arguments_without_secrets(line) == [
        "llmsys",
        f"+launcher.env.MY_TOKEN={LEFT_OUT}",
        f"launcher.env={LEFT_OUT}",
        f"name={LEFT_OUT}",
        "seed=3",
        LEFT_OUT,
    ]


def test_no_file_of_a_run_holds_a_secret_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, env = RunPaths(tmp_path), {"My_api_key": "hunter22", "NCCL_DEBUG": "INFO", "PLAIN": KEY}
    config = from_plain(
        {"launcher": {"env": env}, "data": {"system": f"the {PASS} is 'x', {PASS}: opensesame"}}
    )
    record.write_inference_job(paths, config=config, choices=(), inputs={}, engine={})
    files = {
        "config.yaml": yaml.safe_dump({"launcher": {"env": env}}),
        "overrides.yaml": "- +launcher.env.My_api_key=hunter22\n- 'launcher.env={My_api_key: hunter22}'\n",
    }
    record.write_hydra(paths, files=files, variables=env)
    record.write_launch_script(paths, command=["env"], variables=env)
    found = "".join(one.read_text() for one in tmp_path.rglob("*") if one.is_file())
    assert "hunter22" not in found and KEY not in found and "INFO" in found
    told = yaml.safe_load((paths.hydra / "config.yaml").read_text())["launcher"]["env"]
    assert told == {"My_api_key": LEFT_OUT, "NCCL_DEBUG": "INFO", "PLAIN": LEFT_OUT}
    assert yaml.safe_load((paths.hydra / "overrides.yaml").read_text())[0].endswith(f"={LEFT_OUT}")
    # by hand it asks for what is not there, and takes it from the environment
    monkeypatch.delenv("My_api_key", raising=False)
    asked = subprocess.run([paths.launch_script], capture_output=True, text=True, check=False)
    assert asked.returncode != 0 and "My_api_key: was left out of this file as a secret" in asked.stderr
    given = {**os.environ, "My_api_key": "again", "PLAIN": "x"}
    done = subprocess.run([paths.launch_script], capture_output=True, text=True, check=True, env=given)
    assert "My_api_key=again" in done.stdout
    # a run that goes on from its record needs it in the environment, too
    again = from_plain(json.loads(paths.job.read_text())["config"])
    assert again.data == config.data  # what a worker reads of it stays what it is
    with pytest.raises(UserError, match="My_api_key, PLAIN was left out of the record"):
        check_secrets(again)
    monkeypatch.setenv("My_api_key", "again")
    monkeypatch.setenv("PLAIN", "x")
    check_secrets(again)
    ours = worker_variables(again, os.environ, python=sys.executable, device="cpu", ranks=1)
    assert "My_api_key" not in ours and ours["NCCL_DEBUG"] == "INFO"


def test_variables_for_other_machines_are_nobody_elses_to_read(tmp_path: Path):
    record.write_env_file(tmp_path / "env", variables={"A_KEY": "x"})
    assert (tmp_path / "env").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "env").read_text() == "A_KEY=x\n"


def test_variables_are_taken_by_an_allow_list():
    env = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "HOME": "/root", "LD_LIBRARY_PATH": "/a:\udcff"}
    env |= {
        "https_proxy": "http:" + "//me:pw123456@proxy",
        "TORCH_LOGS": "x" * 9000,
        "AWS_SECRET_ACCESS_KEY": "y",
    }
    found = variables(env)
    assert set(found) == {"NCCL_DEBUG", "HF_TOKEN", "LD_LIBRARY_PATH", "https_proxy", "TORCH_LOGS"}
    assert found["HF_TOKEN"] == found["https_proxy"] == LEFT_OUT
    assert found["LD_LIBRARY_PATH"] == "/a:\\udcff" and len(found["TORCH_LOGS"]) < 5000


def test_any_failure_becomes_a_note():
    notes: list[str] = []

    def fail() -> Any:
        raise PermissionError(13, "Permission denied")

    assert noted(notes, "piece", fail, "otherwise") == "otherwise"
    assert notes == ["piece: PermissionError: [Errno 13] Permission denied"]
