"""Checkpoints, resuming, early stop, bad steps and locks, without torch."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.config.plain import from_plain, to_plain
from llmsys_exp.config.schema import Config, Dtype
from llmsys_exp.errors import JobError, UserError
from llmsys_exp.jobs.resume import put_aside, split_resume, take_up
from llmsys_exp.jobs.resume_overrides import apply_overrides, check_changes
from llmsys_exp.launch.stopping import GentleStop
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.runs.checkpoints import (
    MARKER,
    SCHEMA_VERSION,
    Checkpoint,
    describe_files,
    file_names,
    folder_name,
    list_checkpoints,
    newest_whole,
    remove_leftovers,
    to_remove,
)
from llmsys_exp.runs.lock import check_free, locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.resume_rules import fixed_settings
from llmsys_exp.workers.training.agreement import check_agreement, facts_of
from llmsys_exp.workers.training.bad_steps import explained_overflow, judge
from llmsys_exp.workers.training.early_stop import note_evaluation, should_stop
from llmsys_exp.workers.training.history import cut_back
from llmsys_exp.workers.training.loop import StepReport
from llmsys_exp.workers.training.preemption import StopRequest
from llmsys_exp.workers.training.progress import Progress

CONFIG: dict[str, Any] = {
    "model": {"id": "tiny", "path": "/models/tiny"},
    "data": {"name": "rows", "train": "/data/rows.json", "heldout": "/data/rows.json"},
    "training": {"micro_batch": 2, "grad_accum": 4, "global_batch": 16, "max_steps": 10, "dtype": "fp32"},
    "hardware": {"gpus_per_node": 2},
    "zero": {"stage": 2},
    "checkpoint": {"every": 2},
}


def checkpoint(folder: Path, step: int, **state: Any) -> Path:
    one = folder / folder_name(step)
    (one / "deep").mkdir(parents=True)
    (one / "model_states.pt").write_bytes(b"weights" * 100)
    (one / "deep" / "optim_states.pt").write_bytes(b"moments" * 100)
    files = describe_files(one, file_names(one))
    marker = {"schema_version": SCHEMA_VERSION, "state": state, "files": files}
    (one / MARKER).write_text(json.dumps(marker), encoding="utf-8")
    return one


def run_folder(folder: Path, **changed: Any) -> RunPaths:
    paths = RunPaths(folder)
    paths.results.mkdir(parents=True)
    (folder / "data.json").write_text("[]", encoding="utf-8")
    config = to_plain(from_plain({**CONFIG, **changed}))
    resolved = {
        "model_folder": str(folder),
        "train_file": str(folder / "data.json"),
        "heldout_file": None,
        "prompts_file": None,
        "world_size": 2,
        "device": "cpu",
    }
    job = {"schema_version": 1, "config": config, "plan": {}, "resolved": resolved}
    paths.job.write_text(json.dumps(job), encoding="utf-8")
    return paths


def config(**changed: Any) -> Config:
    return from_plain({**CONFIG, **changed})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"moments", b"Moments", 1))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda one: cut(one / "model_states.pt"), "has 699 bytes, 700 were written", id="cut"),
        pytest.param(
            lambda one: (one / "deep/optim_states.pt").unlink(), "optim_states.pt is missing", id="gone"
        ),
        pytest.param(
            lambda one: change(one / "deep/optim_states.pt"), "is not what was written", id="changed"
        ),
        pytest.param(lambda one: cut(one / MARKER), "whole.json is missing or broken", id="marker"),
        pytest.param(lambda one: (one / MARKER).unlink(), "whole.json is missing or broken", id="no marker"),
    ],
)
def test_a_spoilt_checkpoint_is_passed_over_with_its_reason(tmp_path, spoil, said):
    checkpoint(tmp_path, 2)
    spoil(checkpoint(tmp_path, 4))
    newest, problems = newest_whole(tmp_path, read_all=True)
    assert newest is not None and newest.step == 2
    assert len(problems) == 1 and problems[0].startswith("step-00000004: ") and said in problems[0]


def test_a_look_at_sizes_alone_does_not_read_the_files(tmp_path):
    change(checkpoint(tmp_path, 4) / "deep/optim_states.pt")
    newest, problems = newest_whole(tmp_path, read_all=False)
    assert newest is not None and not problems


def test_half_written_folders_are_no_checkpoints_and_are_cleared_away(tmp_path):
    for name in (".saving-step-00000004", ".removing-step-00000002", ".converted-step-00000002", "other"):
        (tmp_path / name).mkdir()
    assert list_checkpoints(tmp_path) == []
    assert len(remove_leftovers(tmp_path)) == 3
    assert [one.name for one in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("last", "best", "kept"),
    [
        (1, 0, [50]),
        (2, 0, [40, 50]),
        (1, 1, [20, 50]),
        (2, 2, [20, 30, 40, 50]),
        (9, 0, [10, 20, 30, 40, 50]),
    ],
)
def test_the_latest_and_the_best_stay(last, best, kept):
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 2.5}
    gone = to_remove(losses, keep_last=last, keep_best=best)
    assert sorted(set(losses) - set(gone)) == kept


def test_early_stop_counts_evaluations_in_a_row_and_a_loss_that_is_no_number_is_no_better():
    progress = Progress()
    seen = []
    for step, loss in enumerate((2.0, 1.0, float("nan"), 0.95, 0.7, 0.8, 0.9), start=1):
        progress.step = step
        seen.append(note_evaluation(progress, loss, min_delta=0.1))
    assert seen == [True, True, False, True, True, False, False]
    assert (progress.best_loss, progress.best_step, progress.waited) == (0.7, 5, 2)
    hopeless = Progress()
    assert not note_evaluation(hopeless, float("nan"), min_delta=0.0) and hopeless.best_loss is None
    assert should_stop(progress, patience=2)
    assert not should_stop(progress, patience=3) and not should_stop(progress, patience=None)


def report(step: int, **changed: Any) -> StepReport:
    figures = {"loss": 1.0, "lr": 0.1, "gradient_norm": 1.0, "tokens": 1, "seconds": 1.0}
    return StepReport(step=step, **figures | changed)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "changed",
    [{"loss": NAN}, {"loss": INF}, {"gradient_norm": INF}, {"gradient_norm": -1.0}, {"applied": False}],
    ids=str,
)
def test_bad_steps_are_counted_and_one_too_many_ends_the_run(changed, capsys):
    progress = Progress()
    judge(report(1), progress, dtype=Dtype.bf16, allowed=1)
    judge(report(2, **changed), progress, dtype=Dtype.bf16, allowed=1)
    assert progress.bad_steps == 1 and "1 of 1 allowed" in capsys.readouterr().out
    with pytest.raises(JobError, match="diverged in step 3 after 1 that were left out") as raised:
        judge(report(3, **changed), progress, dtype=Dtype.bf16, allowed=1)
    assert raised.value.kind == "diverged"


def test_steps_that_the_fp16_scaler_leaves_out_are_counted_apart():
    progress = Progress()
    judge(report(1, applied=False, gradient_norm=INF), progress, dtype=Dtype.fp16, allowed=0)
    assert (progress.overflow_steps, progress.bad_steps) == (1, 0)
    with pytest.raises(JobError, match="diverged"):
        judge(report(2, applied=False, loss=NAN), progress, dtype=Dtype.fp16, allowed=0)


def test_overflow_at_the_smallest_scale_is_explained():
    with pytest.raises(JobError, match="bf16") as raised, explained_overflow(6):
        raise Exception("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
    assert raised.value.kind == "fp16_overflow" and "step 7" in str(raised.value)
    with pytest.raises(ZeroDivisionError), explained_overflow(6):
        raise ZeroDivisionError


def test_metrics_are_cut_back_to_the_checkpoint_and_later_lines_are_kept_elsewhere(tmp_path):
    metrics, dropped = tmp_path / "metrics.jsonl", tmp_path / "dropped.jsonl"
    lines = [json.dumps({"step": step, "train/loss": 1 / step}) for step in (1, 2, 3, 4)]
    metrics.write_text("\n".join(lines) + '\n{"step": 5, "trai', encoding="utf-8")
    assert cut_back(metrics, dropped, step=2) == 2
    assert metrics.read_text(encoding="utf-8").splitlines() == lines[:2]
    assert dropped.read_text(encoding="utf-8").splitlines() == lines[2:]


def test_progress_survives_the_way_through_json_and_unknown_keys():
    progress = Progress(step=4, best_loss=1.5, resumed_from=[2])
    assert Progress.from_dict({**json.loads(json.dumps(progress.to_dict())), "later": 1}) == progress


def test_a_second_process_in_a_run_folder_is_refused_until_the_first_is_dead(tmp_path):
    lock = tmp_path / ".lock"
    code = f"""
import time
from pathlib import Path
from llmsys_exp.runs.lock import locked
with locked(Path({str(lock)!r})):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"still going: process {holder.pid}"):
        check_free(lock)
    holder.kill()
    holder.wait()
    check_free(lock)
    with locked(lock):
        pass


def test_who_only_looks_at_a_lock_does_not_have_another_refused(tmp_path):
    lock = tmp_path / ".lock"
    lock.touch()
    looker = os.open(lock, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)  # as `is_held` does
    leaves = threading.Timer(0.02, os.close, [looker])
    leaves.start()
    with locked(lock):
        pass
    leaves.join()


def test_the_first_signal_is_noted_and_repeated_at_once_it_is_the_same_request(capsys):
    with StopRequest(enabled=True) as request:
        assert not request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert request.requested
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert f'"stoppable", "pid": {os.getpid()}' in capsys.readouterr().out


def test_the_parent_asks_the_rank_first_and_gives_way_to_the_second_signal():
    said: list[str] = []
    code = "import signal, time; signal.signal(15, lambda *_: exit(6)); print('ready', flush=True); time.sleep(60)"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    with GentleStop(said.append) as gentle:
        assert not gentle.ask()
        gentle.learn({"event": "stoppable", "pid": rank.pid})
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert rank.wait(timeout=10) == 6
        # a batch system and its script both pass one request on
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(said) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert not gentle.ask()


def test_a_run_is_taken_up_with_its_own_configuration(tmp_path):
    paths = run_folder(tmp_path / "run")
    checkpoint(paths.checkpoints, 4)
    found = take_up(paths.folder, ["training.max_steps=20", "checkpoint=every_100", "launcher.timeout_s=60"])
    assert found.checkpoint is not None and found.checkpoint.step == 4
    assert found.config.training.max_steps == 20 and found.config.checkpoint.every == 100
    assert found.config.training.learning_rate == config().training.learning_rate
    assert fixed_settings(found.config) == fixed_settings(config())
    assert [one.name for one in found.steps] == ["train"] and not found.extends


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"checkpoint": {"every": 7}, "training": {"max_steps": 9}}, None),
        (
            {"training": {"learning_rate": 1.0}, "seed": 1},
            "seed (1234 -> 1), training.learning_rate (0.0001 -> 1.0)",
        ),
        ({"method": {"lora": {"targets": ["q_proj"]}}}, "method.lora.targets (all-linear -> ['q_proj'])"),
    ],
    ids=["nothing", "what-may", "two", "list"],
)
def test_a_worker_names_the_settings_that_changed_since_its_checkpoint(tmp_path, changed, said):
    def facts(more):
        return facts_of(from_plain(more), global_batch=16, fingerprint="data")

    paths = run_folder(tmp_path / "run")
    folder = checkpoint(paths.checkpoints, 4, **json.loads(json.dumps(facts({}))))
    found = Checkpoint(folder, 4)
    if said is None:
        check_agreement(found, facts(changed), paths)
        return
    with pytest.raises(JobError, match=re.escape(f"step-00000004; changed since: {said}")) as failure:
        check_agreement(found, facts(changed), paths)
    assert failure.value.kind == "resume"
    other_rows = facts({}) | {"fingerprint": "other"}
    with pytest.raises(JobError, match="changed since: the training data, its template or its tokenizer"):
        check_agreement(found, other_rows, paths)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.learning_rate=1"], "training.learning_rate (0.0001 -> 1.0)"),
        (["zero.stage=3", "seed=1"], "seed (1234 -> 1), zero.stage (2 -> 3)"),
        (["training.max_stepz=3"], "Did you mean training.max_steps?"),
        (["training.global_batch=8"], "was 16 and cannot become 8"),
        (["hardware.gpus_per_node=3"], "Take 1, 2, 4, 8, 16 ranks"),
        (["checkpoint=every_10"], "Did you mean every_100?"),
        (["training.max_steps=1,2"], "several values"),
        (["training.max_steps=many"], "many"),
        (["training.micro_batch=0"], "training.micro_batch is 0; it must be 1 to 65,536"),
        (["training.micro_batch=big"], "training.micro_batch cannot be 'big'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_would_change_the_training_is_refused(tmp_path, overrides, said):
    paths = run_folder(tmp_path / "run")
    checkpoint(paths.checkpoints, 4)
    with pytest.raises(UserError) as raised:
        take_up(paths.folder, overrides)
    assert said in str(raised.value)


def test_what_is_given_again_as_it_was_is_no_change(tmp_path):
    paths = run_folder(tmp_path / "run")
    checkpoint(paths.checkpoints, 4)
    assert take_up(paths.folder, ["zero.stage=auto", "training.learning_rate=1e-4"]).config.zero.stage == 2


@pytest.mark.parametrize(("ranks", "micro", "accum"), [(1, 2, 8), (4, 2, 2), (8, 2, 1), (16, 1, 1)])
def test_the_global_batch_stays_on_another_number_of_ranks(tmp_path, ranks, micro, accum):
    paths = run_folder(tmp_path / "run")
    checkpoint(paths.checkpoints, 4)
    found = take_up(paths.folder, [f"hardware.gpus_per_node={ranks}"])
    training = found.config.training
    assert (training.micro_batch, training.grad_accum, training.global_batch) == (micro, accum, 16)
    assert found.inputs.world_size == ranks


def test_without_a_whole_checkpoint_it_says_how_to_begin_again(tmp_path):
    paths = run_folder(tmp_path / "run")
    with pytest.raises(UserError, match=r"no whole checkpoint.*launch\.sh"):
        take_up(paths.folder, [])
    (checkpoint(paths.checkpoints, 4) / MARKER).unlink()
    with pytest.raises(UserError, match=r"step-00000004: whole\.json is missing"):
        take_up(paths.folder, [])


def test_a_finished_run_has_nothing_left_until_it_is_made_longer(tmp_path):
    paths = run_folder(tmp_path / "run", steps=["train"])
    checkpoint(paths.checkpoints, 10)
    paths.result("train").write_text("{}", encoding="utf-8")
    paths.manifest.write_text("{}", encoding="utf-8")
    assert take_up(paths.folder, []).steps == ()
    longer = take_up(paths.folder, ["training.max_steps=12"])
    assert longer.extends and [one.name for one in longer.steps] == ["train"]
    put_aside(paths)
    assert not paths.manifest.exists() and not paths.result("train").exists()
    assert sorted(one.name for one in (paths.history / "1").iterdir()) == ["manifest.json", "train.json"]


def test_a_folder_that_is_none_of_ours_and_flags_are_refused(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        take_up(tmp_path, [])
    with pytest.raises(UserError, match="does not go with resume="):
        split_resume(["resume=x", "-m"])
    assert split_resume(["resume=/x/y", "training.max_steps=3"]) == (Path("/x/y"), ["training.max_steps=3"])


def test_overrides_keep_the_types_of_the_schema():
    changed = apply_overrides(config(), ["training.max_steps=null", "launcher.env={A: b}", "gate=off"])
    assert changed.training.max_steps is None and changed.launcher.env == {"A": "b"}
    check_changes(config(), changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checkpoint": {"keep_best": 1}}, "checkpoint.keep_best goes by the held-out loss"),
        ({"training": {"early_stop_patience": 2}}, "training.early_stop_patience goes by the held-out loss"),
        (
            {"training": {"evaluate_every": 5}, "data": {"name": "rows", "train": "rows.json"}},
            "training.evaluate_every=5 has no rows to measure on",
        ),
    ],
)
def test_settings_that_need_a_heldout_loss_are_refused_without_one(changed, said):
    with pytest.raises(UserError, match=said):
        check_settings(config(**changed))


def test_a_setting_goes_before_its_group_wherever_it_stands():
    overrides = ["inference.sampling.temperature=0.1", "inference=creative"]
    sampling = apply_overrides(config(), overrides, reopens=True).inference.sampling
    assert (sampling.temperature, sampling.top_p) == (0.1, 0.9)
    with pytest.raises(UserError, match="add -m to ask with each"):
        apply_overrides(config(), ["inference.batch_size=1,2"], reopens=True)
