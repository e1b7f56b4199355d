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


FULL = {"method__kind": "full", "training__dtype": "bf16", "training__learning_rate": 1e-3}
HALF = {**FULL, "training__dtype": "fp16", "training__initial_scale_power": 8}
ADAM = {"training__optimizer": "deepspeed_adamw"}
ADAPTED = {"training__dtype": "bf16", **ADAM}
OFFLOADED = {"offload__optimizer": "cpu", **ADAM}
CHECKPOINTED = {"training__gradient_checkpointing": True, "training__checkpointing": "deepspeed"}
SAME_LOSSES: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        **{f"adam-{stage}": {"zero__stage": stage, **FULL, **ADAM} for stage in range(4)},
        **{f"offloaded-{stage}": {"zero__stage": stage, **FULL, **OFFLOADED} for stage in (1, 2, 3)},
        "all-offloaded": {"zero__stage": 3, "offload__param": "cpu", **FULL, **OFFLOADED},
        "torch": {"training__optimizer": "torch_adamw", **FULL},
        "torch-fused-0": {"zero__stage": 0, "training__optimizer": "torch_adamw_fused", **FULL},
        "chunked": {"training__loss": "chunked", **FULL, **ADAM},
        "checkpointed": {**CHECKPOINTED, "training__checkpointing_cpu": True, **FULL, **ADAM},
        "wide-accumulation": {"training__grad_accum_dtype": "fp32", "zero__stage": 1, **FULL, **ADAM},
    },
    "fp16": {
        **{f"half-{stage}": {"zero__stage": stage, **HALF, **ADAM} for stage in range(4)},
        "half-fixed": {"zero__stage": 2, "training__loss_scale": 128.0, **HALF, **ADAM},
    },
    "random": {
        f"random-{stage}": {"zero__stage": stage, "model__weights": "random", **FULL, **ADAM}
        for stage in range(4)
    },
    "lora": {f"adapters-{stage}": {"zero__stage": stage, **ADAPTED} for stage in range(4)},
    "lion": {
        f"lion-{stage}": {"zero__stage": stage, **FULL, "training__optimizer": "lion"} for stage in (0, 2, 3)
    },
    "momentum": {
        f"momentum-{stage}": {"zero__stage": stage, **FULL, "training__optimizer": "sgd_momentum"}
        for stage in (0, 2)
    },
    "paged": {
        f"{kind}-{stage}": {"zero__stage": stage, **FULL, "training__optimizer": kind}
        for kind in ("paged_adamw",)
        for stage in (0, 2)
    },
    "8bit": {
        f"8bit-{stage}": {"zero__stage": stage, **FULL, "training__optimizer": "adamw_8bit"}
        for stage in (2, 3)
    },
    **{
        f"qlora-{weights}-{bits}": {
            f"qlora-{weights}-{bits}-{stage}": {
                "zero__stage": stage,
                "method__kind": "qlora",
                "method__quantization": {"bits": bits},
                "model__weights": weights,
                **ADAPTED,
            }
            # stage 3 loads whole on each rank and shards then; the planner refuses it so far
            for stage in range(4)
        }
        for weights in ("pretrained", "random")
        for bits in (4, 8)
    },
}
"""Jobs that differ in where things are kept and so must learn the same."""
NEEDS_BITSANDBYTES = ("paged", "8bit", "qlora")


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


def test_places_stages_and_kernels_change_no_loss(tmp_path, model):
    """All in one process: most of the time is the compilation of DeepSpeed's operators."""
    groups = {
        name: jobs
        for name, jobs in SAME_LOSSES.items()
        if importlib.util.find_spec("bitsandbytes") or not name.startswith(NEEDS_BITSANDBYTES)
    }
    made = {
        name: {
            one: make_job(tmp_path / one, model, device="cuda", **settings) for one, settings in jobs.items()
        }
        for name, jobs in groups.items()
    }
    folders = [paths.folder for jobs in made.values() for paths in jobs.values()]
    done = run_worker("train_all", *folders, timeout_s=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wrong = []
    for name, jobs in made.items():
        found = {one: losses(paths) for one, paths in jobs.items()}
        first = next(iter(found.values()))
        wrong += [
            f"{name}: {one} {values}, not {first}"
            for one, values in found.items()
            if values != pytest.approx(first, rel=1e-2)
        ]
    assert not wrong


def losses(paths: RunPaths) -> list[float]:
    lines = [json.loads(line) for line in paths.metrics.read_text(encoding="utf-8").splitlines()]
    return [one["train/loss"] for one in lines if "train/loss" in one]


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
