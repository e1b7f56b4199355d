"""A manifest is data: what it must not ask for, and what is missing, is refused before anything starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from records import settings, write_manifest

from llmsys_exp.cli import main
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.secrets import LEFT_OUT
from llmsys_exp.reproduce.find import find_run
from llmsys_exp.reproduce.guard import check_plain, check_secrets, check_settings, inside
from llmsys_exp.reproduce.logged import read_logged
from llmsys_exp.runs.files import write_json


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"name": "${oc.env:HOME}"}, "interpolation"),
        ({"data": {"system": "say ${seed}"}}, "interpolation"),
        ({"model": {"_target_": "os.system"}}, "asks for code"),
        ({"a": [{"_partial_": True}]}, "asks for code"),
    ],
    ids=["environment", "inner", "target", "in a list"],
)
def test_interpolations_and_calls_are_refused(config: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said):
        check_plain(config, "manifest.json")


def test_deep_nesting_is_refused_and_not_followed():
    content: Any = 1
    for _ in range(60):
        content = {"a": content}
    with pytest.raises(UserError, match="nested more than"):
        check_plain(content, "manifest.json")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"launcher__python": "/tmp/evil"}, "launcher.python"),
        ({"launcher__env": {"LD_PRELOAD": "x.so"}}, "launcher.env.LD_PRELOAD"),
        ({"launcher__env": {"NCCL_NET_PLUGIN": "x"}}, "launcher.env.NCCL_NET_PLUGIN"),
        ({"launcher__hostfile": "hosts"}, "launcher.hostfile"),
        ({"inference__server__url": "http://far.example"}, "inference.server.url"),
        ({"inference__sglang__arguments": {"tool_server": "x"}}, "inference.sglang.arguments.tool_server"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_programs_variables_and_servers_need_the_users_word(changes: dict[str, Any], key: str):
    config = settings(**changes)
    with pytest.raises(UserError, match=key.replace(".", r"\.")):
        check_settings(config, given=[], trusted=False, where="m")
    check_settings(config, given=[key], trusted=False, where="m")
    check_settings(config, given=[], trusted=True, where="m")


def test_variables_that_load_no_code_are_taken_over():
    config = settings(launcher__env={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4"})
    check_settings(config, given=[], trusted=False, where="m")


def test_remote_code_is_not_covered_by_trust():
    config = settings(model__trust_remote_code=True)
    with pytest.raises(UserError, match="Python code that came with its model"):
        check_settings(config, given=[], trusted=True, where="m")
    check_settings(config, given=["model.trust_remote_code"], trusted=False, where="m")


def test_values_that_a_record_leaves_out_have_to_be_given_again():
    config = Config()
    config.launcher.env = {"MY_KEY": LEFT_OUT}
    with pytest.raises(UserError, match=r"launcher\.env\.MY_KEY"):
        check_secrets(config, "m")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "link/patch", "a\0b"])
def test_files_outside_of_the_run_folder_are_refused(tmp_path: Path, name: str):
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="outside of the run folder"):
        inside(run, name, "code.patch")
    assert inside(run, "code.patch", "code.patch") == run / "code.patch"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cut short"),
        ('{"schema_version": 2, "config": {"seed"', "cut short"),
        ("a: &a [1]\nb: *a\n", "no JSON"),
        ("[" * 100_000, "nested|cut short"),
        ('{"schema_version": 99}', "version 99"),
        ('{"schema_version": 2, "config": []}', "config should be"),
        ('{"schema_version": 2, "config": {"steps": ["train", "rm"]}}', "steps that there are not"),
    ],
    ids=["empty", "cut", "yaml", "deep", "newer", "shape", "steps"],
)
def test_broken_manifests_are_refused_in_one_message(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "manifest.json"
    file.write_text(text, encoding="utf-8")
    assert main.run(["reproduce", str(file)]) == 2
    message = capsys.readouterr().err
    assert re.search(said, message), message
    assert "Traceback" not in message


def test_an_edited_manifest_is_read_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = write_manifest(tmp_path / "default" / "run")
    content = json.loads(file.read_text(encoding="utf-8"))
    content["config"]["seed"] = 5
    write_json(file, content)
    assert read_logged(file).is_edited
    assert main.run(["reproduce", str(file), "--check"]) == 5
    assert "edited by hand" in capsys.readouterr().out
    assert main.run(["reproduce", str(file)]) == 2
    assert "edited by hand" in capsys.readouterr().err
    assert list(tmp_path.glob("**/*.jsonl")) == []


def test_runs_are_found_by_folder_file_and_id_and_pointed_to_when_they_moved(tmp_path: Path):
    outputs = tmp_path / "outputs"
    file = write_manifest(outputs / "tiny" / "2026-11-30_08-00-00-abc")
    for text in (str(file), str(file.parent), "tiny/2026-11-30_08-00-00-abc"):
        assert find_run(text, outputs) == file
    with pytest.raises(UserError, match="lies in"):
        find_run(str(tmp_path / "old" / "2026-11-30_08-00-00-abc"), outputs)
    with pytest.raises(UserError, match=r"Did you mean tiny/2026-11-30_08-00-00-abc\?"):
        find_run("tiny/2026-11-30_08-00-00-abd", outputs)
    with pytest.raises(UserError, match="Name one of the runs in it"):
        find_run("tiny", outputs)


def test_a_run_that_was_killed_is_known_by_the_record_of_its_start(tmp_path: Path):
    file = write_manifest(tmp_path / "tiny" / "run")
    file.rename(file.with_name("start.json"))
    logged = read_logged(find_run(str(file.parent), tmp_path))
    assert not logged.ended


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chek", "x"], "Did you mean --check"),
        (["a", "b"], "2 runs are named"),
        (["--check"], "0 runs are named"),
        (["a", "--point", "x"], "names no points"),
        (["--from", "x", "y"], "without --from"),
    ],
)
def test_command_lines_that_say_nothing_clear_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main.run(["reproduce", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_looking_at_a_manifest_starts_no_program_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n", encoding="utf-8")
    program.chmod(0o755)
    file = write_manifest(tmp_path / "default" / "run", config=settings(launcher__python=str(program)))
    assert main.run(["reproduce", str(file), "--check"]) == 5
    assert "Nothing is run as long as" in capsys.readouterr().out
    assert main.run(["reproduce", str(file)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("environment/packages", 1.5),
        ("environment/variables/OMP_NUM_THREADS", {"a": 1}),
        ("data/files/train/sha256", 5),
        ("inputs/adapter_folder", ["/x"]),
        ("config/launcher/env", "A=B"),
        ("results/train/evaluation", [1]),
        ("machine/gpus", {"name": "H200"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parts_of_another_kind_are_named(tmp_path: Path, place: str, value: Any):
    content: dict[str, Any] = {"config": settings(), "data": {"files": {}}, "results": {"train": {}}}
    *keys, last = place.split("/")
    node = content
    for key in keys:
        node = node.setdefault(key, {})
    node[last] = value
    file = write_manifest(tmp_path / "tiny" / "run", **content)
    with pytest.raises(UserError, match=place.replace("/", r"\.")):
        read_logged(file)


def test_choices_of_no_known_shape_are_left_out(tmp_path: Path):
    whole = {"key": "zero.stage", "value": 2, "reason": "why", "given": False}
    broken = [{**whole, "key": {}}, {**whole, "value": []}, {"key": "x"}]
    file = write_manifest(tmp_path / "tiny" / "run", choices=[whole, *broken])
    assert [one.key for one in read_logged(file).choices] == ["zero.stage"]
