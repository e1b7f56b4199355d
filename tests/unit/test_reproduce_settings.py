"""Settings of a recorded run as they are run today, records of older versions included."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import settings, write_manifest

from llmsys_exp.config.schema import Dtype
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.drift import Effect
from llmsys_exp.reproduce.drifts.files import data_drifts
from llmsys_exp.reproduce.drifts.record import record_drifts
from llmsys_exp.reproduce.environment import write_requirements
from llmsys_exp.reproduce.logged import Logged, read_logged
from llmsys_exp.reproduce.settings import Recreated, recreate

OLD = sorted((Path(__file__).parent / "data" / "manifests").glob("*.json"))


def recorded(tmp_path: Path, **changes: object) -> Logged:
    return read_logged(write_manifest(tmp_path / "tiny" / "run", config=settings(**changes)))


def again(logged: Logged, *overrides: str) -> Recreated:
    return recreate(logged, overrides, outputs=Path("/out"))


def test_what_was_resolved_is_what_is_run_whatever_the_defaults_are(tmp_path: Path):
    found = again(recorded(tmp_path, training__adam_eps=1e-5, training__micro_batch=3, paths__outputs="/etc"))
    assert (found.config.training.adam_eps, found.config.training.micro_batch) == (1e-5, 3)
    assert found.config.paths.outputs == "/out"
    assert found.drifts == ()


def test_settings_that_went_and_came_are_told_of(tmp_path: Path):
    config = settings()
    del config["training"]["bad_steps_allowed"]
    config["training"]["old_trick"] = 3
    logged = read_logged(write_manifest(tmp_path / "tiny" / "run", config=config))
    gone, come = again(logged).drifts
    assert (gone.key, gone.effect) == ("training.old_trick", Effect.NUMBERS)
    assert (come.key, come.effect) == ("training.bad_steps_allowed", Effect.NOTHING)


def test_values_that_are_none_any_more_point_to_the_code_of_then(tmp_path: Path):
    with pytest.raises(UserError, match="--code"):
        again(recorded(tmp_path, training__optimizer="muon_of_old"))


def test_the_command_line_changes_settings_and_is_told_of(tmp_path: Path):
    logged = recorded(tmp_path, training__dtype="fp32", training__grad_accum_dtype="fp32")
    found = again(logged, "training.dtype=bf16", "paths.cache=elsewhere")
    assert found.config.training.grad_accum_dtype is Dtype.bf16
    told = {one.key: one for one in found.drifts}
    assert told["training.dtype"].kind == "command line"
    assert told["training.dtype"].effect is Effect.NUMBERS
    assert told["training.grad_accum_dtype"].effect is Effect.MEMORY
    assert set(told) == {"training.dtype", "training.grad_accum_dtype"}


def test_other_ranks_keep_the_batch_of_all(tmp_path: Path):
    batch = {"training__micro_batch": 4, "training__grad_accum": 1, "training__global_batch": 4}
    found = again(recorded(tmp_path, **batch), "hardware.gpus_per_node=2")
    training = found.config.training
    assert (training.micro_batch, training.grad_accum, training.global_batch) == (2, 1, 4)


def test_files_that_are_still_there_are_named_by_where_they_were(tmp_path: Path):
    file = tmp_path / "rows.json"
    file.write_text("[]", encoding="utf-8")
    inputs = {"train_file": str(file), "heldout_file": str(tmp_path / "gone.json"), "model_folder": None}
    config = settings(data__train="rows.json", data__heldout="gone.json", data__dataset_info="/x/info.json")
    logged = read_logged(write_manifest(tmp_path / "tiny" / "run", config=config, inputs=inputs))
    data = again(logged).config.data
    assert (data.train, data.heldout, data.dataset_info) == (str(file), "gone.json", None)


@pytest.mark.parametrize("file", OLD, ids=lambda path: path.stem)
def test_records_of_older_versions_make_a_configuration(file: Path):
    found = again(read_logged(file))
    assert found.config.name
    assert all(one.effect is Effect.NOTHING for one in found.drifts), [one.what for one in found.drifts]


def test_there_are_old_records():
    assert len(OLD) >= 6


def test_packages_of_then_are_written_as_requirements_and_never_over_a_file(tmp_path: Path):
    environment = {"python": "3.11.7", "packages": {"torch": "2.13.0+cpu", "llmsys-exp": "0.1", "Abc": "1"}}
    logged = read_logged(write_manifest(tmp_path / "tiny" / "run", environment=environment))
    file = tmp_path / "then.txt"
    commands = write_requirements(logged, file)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["Abc==1", "torch==2.13.0+cpu"]
    assert commands[0].startswith("python3.11 -m venv")
    with pytest.raises(UserError, match="exists"):
        write_requirements(logged, file)


def test_a_run_that_ran_in_parts_is_known_as_one(tmp_path: Path):
    first = {"overrides": ["model=local"], "code": {"commit": "a"}}
    starts = [first, {"overrides": ["training.max_steps=9"], "code": {"commit": "b"}}]
    logged = read_logged(write_manifest(tmp_path / "tiny" / "run", starts=starts))
    parts, code = record_drifts(logged)
    assert "taken up again with training.max_steps=9" in parts.what
    assert "2 states of the code" in code.what
    once = read_logged(write_manifest(tmp_path / "tiny" / "once", starts=[first, {**first, "overrides": []}]))
    assert list(record_drifts(once)) == []


def test_data_of_the_hub_is_left_to_the_worker_and_a_missing_file_is_not():
    known = {"sha256": "a" * 64, "bytes": 9}
    assert list(data_drifts({"files": {"train": {**known, "path": "org/rows"}}}, {"files": {}})) == []
    (gone,) = data_drifts({"files": {"train": {**known, "path": "/rows.json"}}}, {"files": {}})
    assert gone.blocks
    assert "9 bytes" in gone.what


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc", "a/b", ""])
def test_a_name_that_would_leave_the_folder_of_outputs_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        again(recorded(tmp_path, name=name))
