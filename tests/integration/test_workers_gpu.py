"""The workers on a CUDA device, with NCCL where there are two."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import make_job, make_model, run_worker

from llmsys_exp.runs.paths import RunPaths

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

BF16 = {"training__dtype": "bf16", "training__evaluate": True}
CASES: dict[str, dict[str, Any]] = {
    "full-2": {"method__kind": "full", "zero__stage": 2, **BF16},
    "full-3": {"method__kind": "full", "zero__stage": 3, **BF16},
    "lora-0": {"zero__stage": 0, **BF16},
    "lora-3-checkpointed": {"zero__stage": 3, "training__gradient_checkpointing": True, **BF16},
    "lora-2-fp16": {"zero__stage": 2, "training__dtype": "fp16", "training__max_steps": 20},
    "full-2-fused-adam": {
        "method__kind": "full",
        "zero__stage": 2,
        "training__optimizer": "deepspeed_adamw",
        **BF16,
    },
}
NEEDING = {
    "bitsandbytes": {"qlora-2": {"method__kind": "qlora", "zero__stage": 2, **BF16}},
    "liger_kernel": {"lora-2-liger": {"zero__stage": 2, "training__liger": True, **BF16}},
}
for package, cases in NEEDING.items():
    CASES |= cases if importlib.util.find_spec(package) else {}


def gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not gpu_count():
        pytest.skip("needs a CUDA device")
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


def train(paths: RunPaths, *, ranks: int | None = None) -> dict[str, Any]:
    done = run_worker("llmsys_exp.workers.train", paths.folder, ranks=ranks, port=29703)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(paths.result("train").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_training_exports_and_answers_on_a_gpu(tmp_path, model, name):
    paths = make_job(tmp_path / name, model, device="cuda", **CASES[name])
    summary = train(paths)
    assert summary["loss"]["last"] < summary["loss"]["first"]
    largest = summary["memory_per_rank"][0]["largest"]
    assert 0 < largest["peak_allocated_bytes"] <= largest["peak_reserved_bytes"]
    for worker in ("export", "infer"):
        done = run_worker(f"llmsys_exp.workers.{worker}", paths.folder)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("stage", [2, 3])
def test_two_gpus_learn_like_one(tmp_path, model, stage):
    if gpu_count() < 2:
        pytest.skip("needs two CUDA devices")
    settings = {"zero__stage": stage, "training__evaluate": True}
    alone = train(make_job(tmp_path / "one", model, device="cuda", **settings))
    paths = make_job(
        tmp_path / "two", model, device="cuda", world_size=2, **settings, training__micro_batch=1
    )
    together = train(paths, ranks=2)
    assert together["loss"]["last"] == pytest.approx(alone["loss"]["last"], rel=1e-2)
    assert together["evaluation"]["after"]["loss"] == pytest.approx(
        alone["evaluation"]["after"]["loss"], rel=1e-2
    )
