"""The perceptron through the training worker: DeepSpeed at every stage on two CPU ranks, in one process each."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import run_forked
from tiny_jobs import make_job

import planner
from llmsys_exp.runs.paths import RunPaths

pytestmark = pytest.mark.engine

SIDE, LAYERS, RANKS, BATCH, BUCKET = 8, [64, 24, 10], 2, 16, 4000
TOTAL = 64 * 24 + 24 + 24 * 10 + 10
STAGES = (2, 0, 1, 3)  # the first has the process to itself, and its bytes are counted
SCALARS_BYTES = 200
KEPT = ("weights", "fp32 master weights", "optimizer states")


def write_images(folder: Path) -> None:
    """Ten patterns with noise, in the four files."""
    random = np.random.default_rng(5)
    patterns = random.integers(0, 256, (10, SIDE, SIDE))
    for part, count in (("train", 320), ("t10k", 101)):
        labels = np.arange(count, dtype=np.uint8) % 10
        noisy = patterns[labels] + random.normal(0, 40, (count, SIDE, SIDE))
        files = {"images-idx3": noisy.clip(0, 255).astype(np.uint8), "labels-idx1": labels}
        for name, values in files.items():
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunPaths]:
    base = tmp_path_factory.mktemp("images")
    made = {stage: make_image_job(base / f"stage-{stage}", stage) for stage in STAGES}
    done = run_forked("train_all", *(one.folder for one in made.values()), ranks=RANKS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert '"images_per_s"' in done.stdout and "tokens" not in done.stdout
    return made


def make_image_job(folder: Path, stage: int) -> RunPaths:
    paths = make_job(
        folder,
        folder,
        world_size=RANKS,
        model__kind="mlp",
        model__layers=LAYERS,
        method__kind="full",
        zero__stage=stage,
        zero__reduce_bucket_size=BUCKET,
        training__micro_batch=BATCH,
        training__grad_accum=1,
        training__epochs=4.0,
        training__max_steps=None,
        training__evaluate=True,
        training__evaluate_every=20,
    )
    write_images(folder)
    job = json.loads(paths.job.read_text(encoding="utf-8"))
    job["resolved"] |= {"model_folder": None, "train_file": str(folder), "heldout_file": None}
    paths.job.write_text(json.dumps(job), encoding="utf-8")
    return paths


def result(paths: RunPaths) -> dict[str, Any]:
    return json.loads(paths.result("train").read_text(encoding="utf-8"))


def lines(paths: RunPaths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in paths.metrics.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("stage", STAGES)
def test_it_learns_and_tells_accuracy_and_images(runs, stage):
    found = result(runs[stage])
    before, after = found["evaluation"]["before"], found["evaluation"]["after"]
    assert before["score"] < 0.4
    assert 0.9 < after["score"] <= 1
    assert (after["score_name"], after["rows"]) == ("accuracy", 101)
    assert (found["unit"], found["images"], found["steps"]) == ("image", 4 * 320, 4 * 320 // (RANKS * BATCH))
    assert found["images_per_s"] > 0 and "tokens" not in found
    midway = [one["step"] for one in lines(runs[stage]) if "eval/score" in one]
    assert midway[0] == 20


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_all_stages_learn_the_same(runs, stage):
    losses = [
        [one["train/loss"] for one in lines(runs[which]) if "train/loss" in one] for which in (2, stage)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_stays_in_memory_is_what_is_planned_to_the_byte(runs):
    case = {
        "kind": "mlp",
        "layers": LAYERS,
        "method": "full",
        "gpu": "cpu",
        "dtype": "fp32",
        "optimizer": "torch_adamw",
        "world_size": RANKS,
        "zero_stage": STAGES[0],
        "micro_batch": BATCH,
        "deepspeed": {"zero_optimization": {"reduce_bucket_size": BUCKET}},
    }
    planned = sum(planner.predict(case).components.get(name, 0) for name in KEPT)
    for rank in result(runs[STAGES[0]])["memory_per_rank"]:
        phases = {one["phase"]: one["live_tensor_bytes"] for one in rank["phases"]}
        # scalars, such as Adam's counter of steps, are no part of a plan
        assert 4 * TOTAL <= phases["model loaded"] <= 4 * TOTAL + SCALARS_BYTES
        assert planned <= phases["after last step"] <= planned + SCALARS_BYTES


@pytest.mark.parametrize("stage", STAGES)
def test_the_weights_are_saved_whole(runs, stage):
    from safetensors.torch import load_file

    weights = load_file(runs[stage].perceptron / "model.safetensors")
    assert [list(one.shape) for one in weights.values()] == [[24], [24, 64], [10], [10, 24]]
    same = load_file(runs[2].perceptron / "model.safetensors")
    assert all(np.allclose(weights[name], same[name], atol=1e-4) for name in same)
    config = json.loads((runs[stage].perceptron / "config.json").read_text(encoding="utf-8"))
    assert config == {"kind": "mlp", "layers": LAYERS}
