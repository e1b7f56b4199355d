"""Merging every kind of adapter, cutting whole models anew, quantising: real peft, transformers and GPTQModel."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked
from tiny_jobs import make_job, make_model

from llmsys_exp.inputs.weight_files import sha256_of_files, stored_tensors
from llmsys_exp.runs.paths import RunPaths

pytestmark = pytest.mark.engine

CUT = {"export__shard_gb": 0.0001}
CASES: dict[str, dict[str, Any]] = {
    "dora": {"method__lora": {"use_dora": True}, "data__template": "chatml"},
    "rslora": {"method__lora": {"use_rslora": True, "modules_to_save": ["lm_head"]}},
    "train_base": {"method__lora": {"train_base": True}, "zero__stage": 3, **CUT},
    "full": {"method__kind": "full"},
    "stranger": {},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunPaths]:
    base = tmp_path_factory.mktemp("runs")
    made = {name: make_job(base / name, model, **settings) for name, settings in CASES.items()}
    folders = [one.folder for one in made.values()]
    done = run_forked("train_all", *folders)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained_over(made["stranger"], "another model")
    ask(made["full"], shard_gb=0.0001)
    done = run_forked("export_all", *folders)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return made


def trained_over(paths: RunPaths, name: str) -> None:
    told = {"model": name, "fingerprint": "0"}
    (paths.adapter / "base.json").write_text(json.dumps(told), encoding="utf-8")


def ask(paths: RunPaths, **export: Any) -> None:
    """Do what `llmsys export RUN export.KEY=VALUE` does for the worker."""
    job = json.loads(paths.job.read_text(encoding="utf-8"))
    job["config"]["export"] |= export
    paths.export_job.write_text(json.dumps(job), encoding="utf-8")


def result(paths: RunPaths, step: str = "export") -> dict[str, Any]:
    return json.loads(paths.result(step).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["dora", "rslora", "train_base"])
def test_adapters_are_merged_and_the_written_files_answer_alike(exported, name):
    found = result(exported[name])
    check, stored = found["check"], found["stored"]
    assert check["changed_weights"] == check["adapted_weights"] == 14
    assert check["largest_logit_difference"] <= check["tolerance"] == 1e-4
    assert 0 < stored["logit_difference"] < 5e-2  # files hold 16 bit, the run computed in 32
    assert stored["common"] == 21 and stored["changed"] >= 14 and stored["adapted_unchanged"] == 0
    assert found["weights_sha256"] == sha256_of_files(exported[name].merged)


def test_modules_trained_whole_are_in_the_merged_model(exported):
    assert result(exported["rslora"])["stored"]["changed"] == 15


def test_a_base_that_was_trained_too_takes_the_adapter(exported, model):
    paths = exported["train_base"]
    assert result(paths)["base"] == str(paths.trained_base)
    # embedding and norms carry no adapter: they come from the trained base, and differ from the first one
    merged, trained, first = (stored_tensors(one) for one in (paths.merged, paths.trained_base, model))
    name = "model.embed_tokens.weight"
    assert (
        content(merged[name]) == content(trained[name]) != content(first[name])[: len(content(trained[name]))]
    )
    assert set(merged) == set(trained) == set(first)


def content(one: Any) -> bytes:
    with one.file.open("rb") as stream:
        stream.seek(one.start)
        return stream.read(one.nbytes)


def test_whole_models_are_cut_anew(exported):
    found = result(exported["full"])
    assert found["recut"] and len(found["files"]) == 3
    assert found["stored"]["changed"] == 21
    assert (exported["full"].merged / "model.safetensors.index.json").is_file()


def test_the_named_template_goes_with_the_model(exported):
    written = (exported["dora"].merged / "chat_template.jinja").read_text(encoding="utf-8")
    own = (exported["rslora"].merged / "chat_template.jinja").read_text(encoding="utf-8")
    assert "im_start" in written and written != own


def test_an_adapter_of_another_model_is_refused_and_nothing_is_left(exported):
    paths = exported["stranger"]
    said = (paths.folder / "refused.txt").read_text(encoding="utf-8")
    assert "trained over another model" in said and "another model" in said
    assert not paths.merged.exists() and not list(paths.folder.glob(".merged*"))


@pytest.mark.skipif(find_spec("gptqmodel") is None, reason="needs the extra gptq")
def test_a_merged_model_is_quantised_and_answers(exported, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(exported["rslora"].folder, folder)
    paths = RunPaths(folder)
    ask(paths, gptq={"bits": 8, "group_size": 32, "rows": 12, "max_length": 64})
    done = run_forked("llmsys_exp.workers.quantize", folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = result(paths, "quantize")
    assert found["packed_matrices"] == 14 and found["calibration"]["rows"] == 12
    assert found["after"]["loss"] == pytest.approx(found["before"]["loss"], rel=0.02)
    assert found["weights_sha256"] == sha256_of_files(paths.quantized)
