"""What a user is told after a failure, and what may be gone on with: runs, adapters, model folders."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from llmsys_exp.cli.runs import run as runs_verb
from llmsys_exp.config.folders import with_absolute_paths
from llmsys_exp.config.plain import from_plain
from llmsys_exp.config.schema import Dtype, LoraConfig, MethodConfig, MethodKind
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.inputs.weight_files import INDEX, WHOLE, check_weights
from llmsys_exp.jobs.export_run import export_run
from llmsys_exp.jobs.resume import put_back_when_refused, take_up, tell_way_on
from llmsys_exp.launch.failure import BUG, DISK, KILLED, classify, failure_of_event
from llmsys_exp.plan.method_case import method_case
from llmsys_exp.report.console import Console
from llmsys_exp.report.summary import next_commands
from llmsys_exp.runs.checkpoints import MARKER, SCHEMA_VERSION, describe_files, file_names, folder_name
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.resume_rules import changes, fixed_settings

RESOLVED = {
    "model_folder": None,
    "train_file": None,
    "heldout_file": None,
    "prompts_file": None,
    "world_size": 1,
    "device": "cpu",
}


def run_folder(folder: Path, *, step: int | None) -> RunPaths:
    """A run that got as far as a checkpoint, if `step` names one."""
    paths = RunPaths(folder)
    folder.mkdir()
    config = {"training": {"micro_batch": 1, "grad_accum": 1, "global_batch": 1, "dtype": "fp32"}}
    paths.job.write_text(json.dumps({"config": config, "plan": {}, "resolved": RESOLVED}), encoding="utf-8")
    if step is not None:
        one = paths.checkpoints / folder_name(step)
        one.mkdir(parents=True)
        (one / "states.pt").write_bytes(b"weights")
        marker = {
            "schema_version": SCHEMA_VERSION,
            "state": {},
            "files": describe_files(one, file_names(one)),
        }
        (one / MARKER).write_text(json.dumps(marker), encoding="utf-8")
    return paths


def weights(file: Path, *, lost: int = 0) -> None:
    """A safetensors file of one tensor that lacks its last bytes."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    file.write_bytes((struct.pack("<Q", len(header)) + header + bytes(8))[: -lost or None])


@pytest.mark.parametrize(("kind", "told"), [(KILLED, True), (DISK, True), ("diverged", False)])
def test_a_failure_from_outside_says_how_to_go_on(tmp_path: Path, kind: str, told: bool) -> None:
    paths = run_folder(tmp_path / "run", step=5)
    failure = JobError("It ended", kind=kind, do="Use fewer ranks")
    tell_way_on(failure, paths)
    assert (f"after step 5 with `llmsys train resume={paths.folder}`" in str(failure)) is told
    assert "Use fewer ranks" in str(failure)


def test_without_a_checkpoint_nothing_is_promised(tmp_path: Path) -> None:
    failure = JobError("It ended", kind=KILLED)
    tell_way_on(failure, run_folder(tmp_path / "run", step=None))
    assert "resume" not in str(failure)


def test_a_full_disk_is_told_in_place_of_a_traceback() -> None:
    line = "OSError: [Errno 28] No space left on device"
    failure = failure_of_event({"kind": BUG, "text": line}, otherwise=classify(1, [line]))
    assert (failure.kind, failure.what) == (DISK, "The disk is full")


def test_what_a_worker_said_gets_its_place_before_the_full_stop() -> None:
    assert str(UserError("It failed. Start again.", where="log.txt")) == "It failed. Start again (log.txt)."


def test_broken_checkpoints_are_to_be_removed_before_launch_sh(tmp_path: Path) -> None:
    paths = run_folder(tmp_path / "run", step=5)
    (paths.checkpoints / folder_name(5) / "states.pt").unlink()
    with pytest.raises(UserError, match=r"step 0: rm -r .*checkpoints; sh .*launch\.sh"):
        take_up(paths.folder, [])


def test_the_accumulation_type_that_auto_means_is_no_change() -> None:
    kinds = [from_plain({"training": {"dtype": "bf16", "grad_accum_dtype": one}}) for one in ("auto", "bf16")]
    assert fixed_settings(kinds[0]) == fixed_settings(kinds[1])
    kinds[1].training.grad_accum_dtype = Dtype.fp32
    named = changes(*map(fixed_settings, kinds))
    assert named == ["training.grad_accum_dtype (auto -> fp32)"]


def test_export_of_an_unfinished_run_names_both_ways(tmp_path: Path) -> None:
    paths = run_folder(tmp_path / "run", step=5)
    with pytest.raises(UserError, match=r"train resume=.*checkpoint=last writes the weights of step 5"):
        export_run(paths.folder, [], Console.on(sys.stdout))


def test_a_run_taken_up_again_suggests_no_command_without_its_settings(tmp_path: Path) -> None:
    paths = run_folder(tmp_path / "run", step=None)
    paths.adapter.mkdir()
    config = from_plain({})
    assert any("method.lora.r=16" in line for line in next_commands(paths, config, ["a=b"]))
    config.resume = str(paths.folder)
    assert not any("method.lora.r" in line for line in next_commands(paths, config, ["a=b"]))


def test_adapters_that_peft_stored_with_their_layers_can_be_gone_on_with(tmp_path: Path) -> None:
    names = ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "0.self_attn.q_proj", "k_proj"]
    stored = {"peft_type": "LORA", "r": 4, "target_modules": names}
    (tmp_path / "adapter_config.json").write_text(json.dumps(stored), encoding="utf-8")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    method = MethodConfig(kind=MethodKind.lora, lora=LoraConfig(adapter=str(tmp_path)))
    assert method_case(method, {}, dtype="bf16")["lora"]["target_modules"] == ["k_proj", "q_proj", "up_proj"]


def test_weight_files_cut_short_or_missing_are_refused_before_anything_starts(tmp_path: Path) -> None:
    check_weights(tmp_path)  # older formats are not ours to judge
    weights(tmp_path / WHOLE)
    check_weights(tmp_path)
    weights(tmp_path / WHOLE, lost=1)
    with pytest.raises(UserError, match=r"broken.*ends before a does"):
        check_weights(tmp_path)
    (tmp_path / WHOLE).unlink()
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    weights(tmp_path / places["a"])
    with pytest.raises(UserError, match=r"1 of 2 weight files are missing: model-00002"):
        check_weights(tmp_path)
    weights(tmp_path / places["b"])
    check_weights(tmp_path)


def test_runs_takes_its_folder_as_the_other_verbs_do(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert runs_verb([f"paths.outputs={tmp_path}"]) == 0
    assert "No runs in" in capsys.readouterr().out


def test_folders_that_workers_open_do_not_depend_on_where_a_run_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tok").mkdir()
    given = from_plain({"method": {"lora": {"adapter": "old"}}, "model": {"tokenizer": "tok"}})
    settled = with_absolute_paths(given)
    assert (settled.method.lora.adapter, settled.model.tokenizer) == (f"{tmp_path}/old", f"{tmp_path}/tok")
    given.model.tokenizer = "hub/name"
    assert with_absolute_paths(given).model.tokenizer == "hub/name"


@pytest.mark.parametrize(("kind", "left"), [("resume", "as it was"), ("killed", "anew")])
def test_a_refused_resume_leaves_the_description_of_the_run_as_it_was(tmp_path, kind, left) -> None:
    paths = run_folder(tmp_path / "run", step=2)
    paths.launch_script.write_text("as it was", encoding="utf-8")
    paths.launch_script.chmod(0o755)
    with pytest.raises(JobError), put_back_when_refused(paths):
        paths.launch_script.write_text("anew", encoding="utf-8")
        raise JobError("no", kind=kind)
    assert paths.launch_script.read_text(encoding="utf-8") == left
    assert paths.launch_script.stat().st_mode & 0o777 == 0o755
