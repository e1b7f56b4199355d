"""start.json before the worker, manifest.json after it: the same keys, and evidence that fails stops nothing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.errors import UserError
from llmsys_exp.evidence import files as files_module
from llmsys_exp.evidence import gather, run_files
from llmsys_exp.evidence.errors import EvidenceError
from llmsys_exp.evidence.secrets import LEFT_OUT
from llmsys_exp.runs import recording
from llmsys_exp.runs.facts import Asked, Finished
from llmsys_exp.runs.files import file_hash, write_json
from llmsys_exp.runs.manifest import EMPTY, SEAL, is_edited
from llmsys_exp.runs.migrate import read_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.recording import Recording, missing_evidence

CODE = {"of": "llmsys", "commit": "abc", "branch": "b", "dirty": False, "patch": None, "patch_sha256": None}
RESULTS = {
    "train": {
        "steps": 3,
        "tokens": 99,
        "evaluation": {"after": {"loss": 1.5}},
        "data": {"train": {"rows": 2}},
    },
    "infer": {"prompts": 1, "prompt_tokens": 5, "new_tokens": 7},
}


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The checkout of these tests is not what they are about, nor is the user's cache."""
    monkeypatch.setattr(gather, "code_facts", lambda *_, **__: dict(CODE))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def asked_of(tmp_path: Path, **more: Any) -> Asked:
    data = tmp_path / "rows.json"
    if not data.exists():
        data.write_text("[]")
        os.utime(data, (1, 1))
    config = from_plain({"name": "n", "seed": 5, "launcher": {"env": {"A_TOKEN": "s3cret"}}})
    given = {"command": ["llmsys", "train", "launcher.env.A_TOKEN=s3cret"], "overrides": ["x=1"]}
    given |= {
        "inputs": {"train_file": str(data), "device": "cpu"},
        "env": {"NCCL_DEBUG": "INFO", "HOME": "/h"},
    }
    return Asked(**{"config": config, "choices": (), "python": sys.executable, **given, **more})


def run_paths(tmp_path: Path) -> RunPaths:
    folder = tmp_path / "outputs" / "n" / "one"
    folder.mkdir(parents=True)
    (folder / ".hydra").mkdir()
    chosen = "hydra:\n  runtime:\n    choices:\n      model: local\n      zero: null\n      hydra/help: x\n"
    (folder / ".hydra" / "hydra.yaml").write_text(chosen)
    paths = RunPaths(folder)
    write_json(paths.job, {"config": {}})
    return paths


def read(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    assert list(content) == [*EMPTY, SEAL] and is_edited(content) is False
    return content


def test_the_launch_is_recorded_before_and_the_whole_after(tmp_path: Path):
    paths, asked = run_paths(tmp_path), asked_of(tmp_path)
    with Recording(paths, asked) as record:
        start = read(paths.start)
        assert start["finished"] is None and start["results"] == {} and not paths.manifest.exists()
        manifest = record.manifest(Finished(asked, RESULTS, {"train": 1.239, "total": 2.0}))
    write_json(paths.manifest, manifest)
    assert read(paths.manifest) == manifest == read_manifest(paths.manifest)
    for known in (start, manifest):
        assert (
            known["id"] == "n/one" and known["seeds"] == {"run": 5} and known["groups"] == {"model": "local"}
        )
        assert known["command"][2] == f"launcher.env.A_TOKEN={LEFT_OUT}"
        assert "s3cret" not in json.dumps(known)
        assert known["environment"]["variables"] == {"NCCL_DEBUG": "INFO"}
        assert known["environment"]["packages"]["pytest"] and known["machine"]["cpus"]
        assert known["code"] == CODE and known["notes"] == []
        assert known["data"]["files"]["train"]["sha256"] == file_hash(tmp_path / "rows.json")
        assert [one["overrides"] for one in known["starts"]] == [["x=1"]]
    assert manifest["data"]["rows"] == {"train": 2, "prompts": 1}
    assert manifest["metrics"] == {"after": {"loss": 1.5}} and manifest["timing_s"]["train"] == 1.24
    assert manifest["tokens"] == {"trained": 99, "prompts": 5, "answers": 7}
    assert manifest["records"]["job.json"]["sha256"] == file_hash(paths.job)
    assert to_plain(asked.config)["launcher"]["env"] == {"A_TOKEN": "s3cret"}  # what runs keeps it


def test_a_run_that_goes_on_keeps_its_first_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = run_paths(tmp_path)
    with Recording(paths, asked_of(tmp_path)):
        first = read(paths.start)
    monkeypatch.setattr(gather, "code_facts", lambda *_, **__: {**CODE, "commit": "def"})
    with Recording(paths, asked_of(tmp_path, command=["llmsys", "train", "resume=."], overrides=[])):
        second = read(paths.start)
    for key in ("started", "command", "overrides", "groups"):
        assert second[key] == first[key]
    assert [one["code"]["commit"] for one in second["starts"]] == ["abc", "def"]
    assert second["starts"][1]["command"] == ["llmsys", "train", "resume=."]
    paths.start.write_text('{"schema_ver')
    with Recording(paths, asked_of(tmp_path)):
        assert len(read(paths.start)["starts"]) == 1  # a broken one is as good as none


def test_what_is_done_later_leaves_start_json_alone(tmp_path: Path):
    paths = run_paths(tmp_path)
    with Recording(paths, asked_of(tmp_path)):
        before = paths.start.read_bytes()
    with Recording(
        paths, asked_of(tmp_path, command=["llmsys", "export"]), start_file=paths.export_start
    ) as record:
        assert read(paths.export_start)["command"] == ["llmsys", "export"]
        entry = record.later("export", {"export": {"parameters": 1}}, {"export": 0.5})
    assert paths.start.read_bytes() == before
    assert (entry["what"], entry["code"]["commit"], entry["timing_s"]) == ("export", "abc", {"export": 0.5})


def test_evidence_that_fails_is_noted_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    for module, name in (
        (gather, "code_facts"),
        (gather, "machine_facts"),
        (gather, "installed"),
        (gather, "variables"),
        (run_files, "data_paths"),
        (run_files, "model_files"),
        (run_files, "data_files"),
        (recording, "describe_files"),
        (recording, "group_choices"),
    ):
        monkeypatch.setattr(module, name, fail)
    paths, asked = run_paths(tmp_path), asked_of(tmp_path, inputs={"device": "cuda"})
    monkeypatch.setattr(recording.EnergyMeter, "start", lambda _: fail())
    with Recording(paths, asked) as record:
        manifest = record.manifest(Finished(asked, RESULTS, {}))
    assert manifest["code"] is None and manifest["machine"] == {} and manifest["records"] == {}
    assert manifest["results"] == RESULTS and manifest["energy_wh"] is None
    said = " ".join(manifest["notes"])
    for piece in ("code", "machine", "packages", "variables", "data", "files", "records", "groups", "energy"):
        assert f"{piece}: RuntimeError: broken" in said
    assert "record: code: RuntimeError: broken" in missing_evidence(manifest)


def test_a_file_that_cannot_be_read_is_null_with_a_note(tmp_path: Path):
    paths = run_paths(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to("/proc/self/mem")  # there, and refuses to be read
    asked = asked_of(tmp_path, inputs={"model_folder": str(model), "device": "cpu"})
    with Recording(paths, asked):
        start = read(paths.start)
    assert start["model"]["files"]["config.json"]["sha256"] is None
    assert any("config.json: " in note for note in start["notes"])


def test_large_files_do_not_hold_up_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_files, "hash_at_once", lambda *one: files_module.hash_at_once(*one, most_bytes=0))
    go_on = threading.Event()
    real = run_files.HashStore.hash_of
    monkeypatch.setattr(run_files.HashStore, "hash_of", lambda *one: go_on.wait(10) and real(*one))
    paths, asked = run_paths(tmp_path), asked_of(tmp_path)
    (tmp_path / "rows.json").write_text("[1]")
    with Recording(paths, asked) as record:
        assert read(paths.start)["data"]["files"]["train"]["sha256"] is None
        go_on.set()
        deadline = time.monotonic() + 10
        while read(paths.start)["data"]["files"]["train"]["sha256"] is None and time.monotonic() < deadline:
            time.sleep(0.01)
        started = read(paths.start)  # a run that is killed now has the hash
        manifest = record.manifest(Finished(asked, {}, {}))
    wanted = file_hash(tmp_path / "rows.json")
    assert (
        started["data"]["files"]["train"]["sha256"] == wanted == manifest["data"]["files"]["train"]["sha256"]
    )


def test_evidence_that_is_slow_is_in_the_manifest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go_on = threading.Event()
    monkeypatch.setattr(gather, "code_facts", lambda *_, **__: go_on.wait(10) and dict(CODE))
    monkeypatch.setattr(recording, "START_WAIT_S", 0.2)
    paths, asked = run_paths(tmp_path), asked_of(tmp_path)
    with Recording(paths, asked) as record:
        assert read(paths.start)["code"] is None
        go_on.set()
        monkeypatch.setattr(recording, "START_WAIT_S", 10)
        assert record.manifest(Finished(asked, {}, {}))["code"] == CODE


def test_energy_and_memory_of_the_gpus_are_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = {"wh": 1.5, "seconds": 9.0, "samples": 3, "gpus": []}
    monkeypatch.setattr(recording.EnergyMeter, "start", lambda _: None)
    monkeypatch.setattr(recording.EnergyMeter, "stop", lambda _: told)
    paths = run_paths(tmp_path)
    asked = asked_of(tmp_path, inputs={"device": "cuda"}, gpus=("0",))
    with Recording(paths, asked) as record:
        manifest = record.manifest(Finished(asked, {}, {}))
    assert (manifest["energy_wh"], manifest["energy"]) == (1.5, told)

    def none(_: Any) -> None:
        raise EvidenceError("NVML does not start")

    monkeypatch.setattr(recording.EnergyMeter, "start", none)
    monkeypatch.setattr(recording.EnergyMeter, "stop", lambda _: None)
    with Recording(paths, asked) as record:
        manifest = record.manifest(Finished(asked, {}, {}))
    assert manifest["energy_wh"] is None and "energy: NVML does not start" in manifest["notes"]


def test_another_interpreter_is_named_where_it_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        gather,
        "installed",
        lambda python: {"python": "3.12", "packages": {"sglang": "1"}, "cuda": "12.8", "nccl": "2"},
    )
    asked = asked_of(tmp_path, python="/train/python", engine_python="/sglang/python")
    paths = run_paths(tmp_path)
    with Recording(paths, asked):
        start = read(paths.start)
    assert start["environment"]["executable"] == "/train/python"
    assert set(start["environment"]["interpreter_of"]) == {"llmsys", "infer"}
    assert start["environment"]["interpreter_of"]["infer"]["executable"] == "/sglang/python"
    assert (start["machine"]["cuda"], start["machine"]["nccl"]) == ("12.8", "2")


def test_a_start_that_cannot_be_written_leaves_nothing_running(tmp_path: Path):
    paths = run_paths(tmp_path)
    paths.start.mkdir()
    record = Recording(paths, asked_of(tmp_path))
    with pytest.raises(UserError, match="Cannot write"), record:
        pass
    assert record._files._hashing._stop.is_set()
