"""A dry run of one rank against ranks that are all there: two GPUs where there are two, else one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import make_job, make_model, run_worker

from llmsys_exp.dryrun.outcome import Outcome

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

LENGTH = 32
SETTINGS = {
    "training__dtype": "bf16",
    "training__optimizer": "deepspeed_adamw",
    "model__weights": "random",
    "data__max_length": LENGTH,
    "data__train_on_prompt": True,  # every row fills the length
}
HALF = {"method__kind": "full", "training__dtype": "fp16", "training__initial_scale_power": 8}
CASES: dict[str, dict[str, Any]] = {
    **{f"full-{stage}": {"method__kind": "full", "zero__stage": stage} for stage in range(4)},
    **{f"lora-{stage}": {"zero__stage": stage} for stage in (2, 3)},
    **{f"half-{stage}": {"zero__stage": stage, **HALF} for stage in range(4)},
    "offloaded-2": {"method__kind": "full", "zero__stage": 2, "offload__optimizer": "cpu"},
}
NEAR_BYTES = 1 << 20
"""Communicators keep a few small tensors of their own."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_holds_what_a_real_rank_does(model: Path, tmp_path: Path, name: str) -> None:
    import torch

    ranks = 2 if torch.cuda.device_count() > 1 else 1
    shared = {**SETTINGS, **CASES[name]}
    real = make_job(tmp_path / "real", model, world_size=ranks, device="cuda", **shared)
    done = run_worker("llmsys_exp.workers.train", real.folder, ranks=ranks, port=29_611)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = _dry_run(make_job(tmp_path / "dry", model, world_size=ranks, device="cuda", **shared).folder)
    assert outcome.survived
    largest = _largest(json.loads(real.result("train").read_text())["memory_per_rank"][0])
    assert abs(outcome.peak_allocated_bytes - largest) <= NEAR_BYTES


def test_running_out_of_memory_is_a_result(model: Path, tmp_path: Path) -> None:
    shared = {**SETTINGS, "method__kind": "full", "data__max_length": 250, "training__micro_batch": 512}
    folder = make_job(tmp_path / "dry", model, world_size=4, device="cuda", **shared).folder
    outcome = _dry_run(folder, limit_bytes=64 << 20)
    assert not outcome.survived
    assert outcome.oom["kind"] == "oom_gpu" and outcome.oom["moment"] in ("forward", "backward")
    assert outcome.limit_bytes == 64 << 20 and "engine start" in outcome.phases


def _dry_run(folder: Path, **asked: Any) -> Outcome:
    (folder / "dryrun.json").write_text(json.dumps({"rank": 0, **asked}), encoding="utf-8")
    done = run_worker("llmsys_exp.workers.dryrun", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return Outcome.read(json.loads((folder / "results/dryrun.json").read_text()))


def _largest(memory: dict[str, Any]) -> int:
    """The peak of the steps, which load and engine start are not part of."""
    steps = [one for one in memory["phases"] if one["phase"] not in ("model loaded", "engine started")]
    return max(one["peak_allocated_bytes"] for one in steps)
