"""Runs go on to the same losses after a kill at any moment, on another number of ranks, and after bad steps."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked, start_forked
from tiny_jobs import events_of, make_job, make_model

from llmsys_exp.runs.checkpoints import list_checkpoints, newest_whole, remove
from llmsys_exp.runs.paths import RunPaths

pytestmark = pytest.mark.engine

STEPS = 6
COMMON: dict[str, Any] = {
    # the machine of the tests is small
    "heldout": 3,
    "training__micro_batch": 1,
    "training__max_steps": STEPS,
    "training__evaluate": True,
    "training__evaluate_every": 2,
    "data__score": "none",
}
SAVED = {**COMMON, "checkpoint__every": 2}
FULL_2 = {"method__kind": "full", "zero__stage": 2}
LORA_1 = {"method__kind": "lora", "zero__stage": 1, "method__lora": {"dropout": 0.3}}
LORA_3 = {"method__kind": "lora", "zero__stage": 3, "method__lora": {"dropout": 0.3}}
CASES = {
    "full-0": {"method__kind": "full", "zero__stage": 0},
    "full-2": FULL_2,
    "lora-3": LORA_3,
}
TRICKS = {
    "lora-1-whole": LORA_1,
    "torn@5#torn=4": {**SAVED, **LORA_1},
    # one spoilt step is left out, and two are too many
    "spoilt-0#nan=3": {"zero__stage": 0, "training__bad_steps_allowed": 1},
    "spoilt-2#nan=3": {"zero__stage": 2, "training__bad_steps_allowed": 1},
    "diverged#nan=3": {"zero__stage": 2, "checkpoint__every": 2},
    "disk#full=4": {**FULL_2, "checkpoint__every": 2},
    "patient": {
        **FULL_2,
        "training__max_steps": 20,
        "training__epochs": 9.0,
        "training__early_stop_patience": 2,
        # nothing but the first evaluation can be better by so much
        "training__early_stop_min_delta": 1000.0,
        "checkpoint__every": 2,
        "checkpoint__keep_best": 2,
        "checkpoint__keep_last": 1,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, RunPaths], Any]:
    """Train all cases on two ranks in one process each: at a stretch, and with an end in the middle."""
    base = tmp_path_factory.mktemp("life")
    made, arguments = {}, []
    for name, settings in CASES.items():
        for kind, common in (("whole", COMMON), ("cut", SAVED)):
            job = make_job(base / f"{name}-{kind}", model, world_size=2, **common | settings)
            made[f"{name}-{kind}"] = job
            arguments.append(Path(f"{job.folder}@5" if kind == "cut" else job.folder))
    for trick, settings in TRICKS.items():
        name = re.split("[@#]", trick)[0]
        made[name] = make_job(base / name, model, world_size=2, **COMMON | settings)
        arguments.append(Path(f"{base / trick}"))
    process = run_forked("life_jobs", *arguments, ranks=2)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return made, process


def losses(paths: RunPaths) -> list[tuple[int, Any, Any]]:
    lines = map(json.loads, paths.metrics.read_text(encoding="utf-8").splitlines())
    return [(line["step"], line.get("train/loss"), line.get("eval/loss")) for line in lines]


def summary(paths: RunPaths) -> dict[str, Any]:
    return json.loads(paths.result("train").read_text(encoding="utf-8"))


def notes(process: Any, *words: str) -> list[str]:
    texts = [event["text"] for event in events_of(process, "note")]
    return [text for text in texts if all(word in text for word in words)]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_cut_short_goes_on_to_the_same_losses_bit_by_bit(done, name):
    made, _ = done
    whole, cut = made[f"{name}-whole"], made[f"{name}-cut"]
    assert losses(cut) == losses(whole)
    assert len(losses(whole)) == STEPS + STEPS // 2
    assert summary(cut)["resumed_from"] == [4]
    for figure in ("tokens", "loss", "best", "steps"):
        assert summary(cut)[figure] == summary(whole)[figure]
    assert summary(cut)["evaluation"]["after"]["loss"] == summary(whole)["evaluation"]["after"]["loss"]
    # the line after the checkpoint is kept elsewhere
    assert json.loads(cut.dropped_metrics.read_text(encoding="utf-8"))["step"] == 5


def test_only_the_latest_checkpoints_stay_and_all_are_whole(done):
    for one in (done[0][f"{name}-cut"] for name in CASES):
        found = list_checkpoints(one.checkpoints)
        assert [point.step for point in found] == [6, 4]
        assert not any(point.problem(read_all=True) for point in found)


def test_checkpoints_of_adapters_leave_the_base_out(done):
    sizes = {name: list_checkpoints(done[0][f"{name}-cut"].checkpoints)[0].size_bytes for name in CASES}
    assert sizes["lora-3"] < sizes["full-2"] / 3


@pytest.mark.parametrize("stage", [0, 2])
def test_a_step_with_nan_is_left_out_and_counted(done, stage):
    made, process = done
    figures = summary(made[f"spoilt-{stage}"])
    assert figures["bad_steps"] == 1 and figures["steps"] == STEPS
    by_step = {step: loss for step, loss, _ in losses(made[f"spoilt-{stage}"]) if loss is not None}
    assert [step for step, loss in by_step.items() if math.isnan(loss)] == [3]
    assert len(notes(process, "step 3 was left out", "1 of 1 allowed")) == 2


def test_more_bad_steps_than_allowed_end_the_run_and_the_last_good_checkpoint_stays(done):
    made, process = done
    assert notes(process, "diverged: Training diverged in step 3: loss nan")
    assert not made["diverged"].result("train").exists()
    assert [one.step for one in list_checkpoints(made["diverged"].checkpoints)] == [2]


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(done):
    made, process = done
    assert notes(process, "no checkpoint after step 4: the disk took no more data")
    assert summary(made["disk"])["steps"] == STEPS
    # 4 could not be written; 2 stayed, and 6 was written when there was room again
    assert [one.step for one in list_checkpoints(made["disk"].checkpoints)] == [6, 2]
    assert not [one for one in made["disk"].checkpoints.iterdir() if one.name.startswith(".")]


def test_a_run_without_progress_stops_early_and_its_best_state_stays(done):
    made, process = done
    figures = summary(made["patient"])
    assert figures["stopped_early"] and figures["steps"] == 6
    heldout = {loss: step for step, _, loss in losses(made["patient"]) if loss is not None}
    assert figures["best"] == {"loss": min(heldout), "step": heldout[min(heldout)]}
    kept = {one.step for one in list_checkpoints(made["patient"].checkpoints)}
    assert kept == {heldout[loss] for loss in sorted(heldout)[:2]} | {6}
    assert notes(process, "stopped early after step")


def kill_when(ranks: list[Any], happened: Callable[[], bool], *, within_s: float = 120.0) -> None:
    """Kill -9 every rank at a moment of their work."""
    end = time.monotonic() + within_s
    while not happened():
        assert all(one.is_alive() for one in ranks) and time.monotonic() < end
        time.sleep(0.002)
    for one in ranks:
        one.kill()
    for one in ranks:
        one.join()


def test_a_torn_checkpoint_is_passed_over_with_a_note_and_the_losses_stay_the_same(done):
    made, process = done
    assert losses(made["torn"]) == losses(made["lora-1-whole"])
    assert summary(made["torn"])["resumed_from"] == [2]
    assert notes(process, "step-00000004", "bytes", "goes on from step-00000002")


def test_after_kill_9_while_saving_the_losses_are_those_of_the_whole_run(done, model, tmp_path):
    cut = make_job(tmp_path / "killed", model, world_size=2, **SAVED | LORA_3)

    def is_saving_second() -> bool:
        return (cut.checkpoints / ".saving-step-00000004" / "random-1.json").exists()

    ranks = start_forked("life_jobs", cut.folder, ranks=2, env={"SLOW_SAVE_S": "0.5"})
    kill_when(ranks, is_saving_second)
    newest, problems = newest_whole(cut.checkpoints, read_all=True)
    assert newest.step == 2 and not problems
    assert (cut.checkpoints / ".saving-step-00000004").is_dir()
    finished = run_forked("life_jobs", cut.folder, ranks=2)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    assert summary(cut)["resumed_from"] == [2]
    assert losses(cut) == losses(done[0]["lora-3-whole"])
    assert not [one for one in cut.checkpoints.iterdir() if one.name.startswith(".")]


def test_a_run_goes_on_with_half_the_ranks(done, model, tmp_path):
    moved = {}
    for name in ("full-2", "lora-3"):
        settings = SAVED | CASES[name] | {"training__grad_accum": 4}
        moved[name] = make_job(tmp_path / name, model, world_size=1, **settings)
        done[0][f"{name}-cut"].checkpoints.rename(moved[name].checkpoints)
        remove(moved[name].checkpoints / "step-00000006")
    process = run_forked("life_jobs", *(Path(f"{one.folder}#weights=6") for one in moved.values()))
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    for name, paths in moved.items():
        assert summary(paths)["resumed_from"] == [4]
        # dropout draws other numbers with another number of ranks
        tolerance = 0.1 if "lora" in name else 1e-5
        wanted = [loss for step, loss, _ in losses(done[0][f"{name}-whole"]) if step > 4 and loss]
        found = [loss for _, loss, _ in losses(paths) if loss]
        assert found == pytest.approx(wanted, rel=tolerance)
        assert [one.step for one in list_checkpoints(paths.checkpoints)] == [6, 4]
    check_weights(moved["full-2"], saved=moved["full-2"].merged / "model.safetensors")
    check_weights(moved["lora-3"], saved=moved["lora-3"].adapter / "adapter_model.safetensors")


def check_weights(paths: RunPaths, *, saved: Path) -> None:
    """Those of the last checkpoint, put together from all shards, are those that the run has saved."""
    from safetensors.torch import load_file

    found = load_file(paths.consolidated / "step-00000006" / saved.name)
    wanted = load_file(saved)
    assert set(found) == set(wanted)
    assert {str(one.dtype) for one in found.values()} == {"torch.float32"}
    assert all(found[name].to(one.dtype).equal(one) for name, one in wanted.items())
