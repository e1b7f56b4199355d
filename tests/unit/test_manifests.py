"""Manifests of every version are read in today's form; broken, edited and newer ones are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.plain import from_plain
from llmsys_exp.errors import UserError
from llmsys_exp.runs.later import add_later
from llmsys_exp.runs.manifest import EMPTY, SEAL, content_hash, is_edited, sealed
from llmsys_exp.runs.migrate import LARGEST_BYTES, find_manifest, has_manifest, read_manifest
from llmsys_exp.runs.paths import RunPaths

OLD = Path(__file__).parent / "data" / "manifests"
"""Written by the commits that they name, for tiny runs; paths and the kernel's name are made neutral."""


def write(folder: Path, content: Any) -> Path:
    file = folder / "manifest.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


@pytest.mark.parametrize("file", sorted(OLD.glob("*.json")), ids=lambda file: file.stem)
def test_every_older_form_is_read(file: Path):
    old, new = json.loads(file.read_text(encoding="utf-8")), read_manifest(file)
    assert list(new) == list(EMPTY)
    assert new["schema_version"] == 2 and is_edited(new) is None
    for key in ("finished", "command", "overrides", "name", "config", "choices", "results", "metrics"):
        assert new[key] == old[key]
    assert new["seeds"] == {"run": old["seed"]}
    assert new["environment"]["packages"] == old["versions"]
    assert new["environment"]["python"] == old["machine"]["python"] and new["machine"]["cpus"] == 2
    assert from_plain(new["config"]).name == old["name"]
    assert new["notes"] and new["code"] is None


def test_older_forms_tell_of_model_data_and_tokens_what_they_can():
    trained = read_manifest(OLD / "v1_train.json")
    assert trained["model"]["files"]["model.safetensors"]["sha256"].startswith("08cc12e6")
    assert trained["data"]["files"]["train"]["sha256"].startswith("5abc4051")
    assert trained["data"]["rows"] == {"train": 24, "heldout": 24, "prompts": 3}
    assert trained["data"]["template_sha256"].startswith("b50ba999")
    assert trained["tokens"] == {"trained": 336, "prompts": 99, "answers": 12}
    assert read_manifest(OLD / "v1_random.json")["model"]["random_weights_seed"] == 1234
    assert read_manifest(OLD / "v1_first.json")["data"]["rows"] == {}


def test_the_commit_of_an_older_form_stays(tmp_path: Path):
    old = json.loads((OLD / "v1_infer.json").read_text(encoding="utf-8"))
    code = read_manifest(write(tmp_path, {**old, "git": {"commit": "abc", "dirty": True}}))["code"]
    assert (code["commit"], code["dirty"], code["patch"], code["left_out"]) == ("abc", True, None, [])


def test_a_manifest_knows_that_it_was_edited(tmp_path: Path):
    content = sealed({"id": "a/b", "name": "a", "metrics": {"after": {"loss": 1.25}}, "config": {"seed": 1}})
    assert list(content) == [*EMPTY, SEAL]
    assert is_edited(read_manifest(write(tmp_path, content))) is False
    # another order and other white space are no edit
    again = json.dumps(dict(reversed(content.items())), indent=7)
    assert is_edited(read_manifest(write(tmp_path, again))) is False
    content["metrics"]["after"]["loss"] = 1.24
    assert is_edited(read_manifest(write(tmp_path, content))) is True
    del content["energy"]
    content[SEAL] = content_hash(content)
    assert is_edited(read_manifest(write(tmp_path, content))) is True  # a key that is missing was taken out


def test_unknown_keys_are_our_own_mistake():
    with pytest.raises(KeyError, match="enviroment"):
        sealed({"enviroment": {}})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "cut short"),
        ('{"schema_version": 2, "config"', "cut short"),
        ("[]", "no group of keys"),
        ("[" * 100_000, "nested too deep"),
        ('{"schema_version": 2, "name": "\\ud8"}', "cut short"),
        ("{}", "schema_version is None"),
        ({"schema_version": True}, "schema_version is True"),
        ({"schema_version": 1, "config": [1]}, "config should be a group"),
        ({"schema_version": 1, "versions": "x"}, "versions should be a group"),
        ({"schema_version": 2, "command": "rm"}, "command should be a list"),
        ({"schema_version": 2, "command": [1]}, "command should be a list of texts"),
        ({"schema_version": 2, "results": {"train": 3}}, "results should be a group of groups"),
        ({"schema_version": 2, "model": {"files": {"a": "b"}}}, "model.files should be"),
        ({"schema_version": 2, "started": 5}, "started should be text"),
        ({"schema_version": 2, "energy_wh": "much"}, "energy_wh should be a number"),
        ({"schema_version": 2, "name": None}, "name should be text"),
        ({"schema_version": 3}, "version 3, and this llmsys reads versions up to 2"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_message(tmp_path: Path, content: Any, says: str):
    file = write(tmp_path, content)
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(file)
    text = str(caught.value)
    assert str(file) in text and "\n" not in text and len(text) < 400
    assert find_manifest(file) is None


def test_a_missing_and_a_huge_one_are_refused_without_being_read(tmp_path: Path):
    with pytest.raises(UserError, match="No such file"):
        read_manifest(tmp_path / "manifest.json")
    with (tmp_path / "manifest.json").open("wb") as stream:
        stream.truncate(LARGEST_BYTES + 1)
    with pytest.raises(UserError, match="It has 67,108,865 bytes"):
        read_manifest(tmp_path / "manifest.json")


def test_what_is_done_later_is_added_and_vouches_for_nothing_before(tmp_path: Path):
    paths = RunPaths(tmp_path)
    entry = {"what": "export", "results": {"export": {"parameters": 7}}}
    add_later(paths, entry)
    assert not has_manifest(paths)  # there is none to add to
    write(tmp_path, sealed({"id": "a/b", "results": {"train": {"steps": 1}}}))
    add_later(paths, entry)
    found = read_manifest(paths.manifest)
    assert found["results"] == {"train": {"steps": 1}, "export": {"parameters": 7}}
    assert found["later"] == [entry] and is_edited(found) is False
    write(tmp_path, {**found, "name": "other"})
    add_later(paths, entry)
    found = read_manifest(paths.manifest)
    assert len(found["later"]) == 2 and is_edited(found) is True
    write(tmp_path, (OLD / "v1_train.json").read_text(encoding="utf-8"))
    add_later(paths, entry)
    assert is_edited(read_manifest(paths.manifest)) is None
