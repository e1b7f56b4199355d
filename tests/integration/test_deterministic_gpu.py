"""`training.deterministic` on a CUDA device: two runs come out the same to the bit, on one rank and on two."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tiny_jobs import make_job, make_model, run_worker

from llmsys_exp.launch.environment import DETERMINISTIC
from llmsys_exp.launch.gpus import installed_cards

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

COMMON: dict[str, Any] = {
    "training__deterministic": True,
    "training__dtype": "bf16",
    "training__evaluate": True,
    "training__epochs": 3.0,
    "training__max_steps": 8,
    "training__learning_rate": 1e-3,
}
CASES: dict[str, dict[str, Any]] = {
    "lora-0": {"zero__stage": 0},
    "full-2": {"method__kind": "full", "zero__stage": 2, "training__optimizer": "deepspeed_adamw"},
    "full-3": {"method__kind": "full", "zero__stage": 3, "training__optimizer": "deepspeed_adamw"},
    "lora-dropout": {"zero__stage": 2, "method__lora": {"dropout": 0.1}},
}


@pytest.fixture(scope="module", autouse=True)
def card() -> None:
    if not installed_cards():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


def figures(folder: Path) -> list[Any]:
    """Every loss and gradient norm, and the evaluations."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    result = json.loads((folder / "results" / "train.json").read_text(encoding="utf-8"))
    ends = [{key: one[key] for key in ("loss", "score")} for one in result["evaluation"].values()]
    return [*((row["train/loss"], row["grad_norm"]) for row in rows), *ends]


def run_twice(tmp_path: Path, model: Path, *, ranks: int, **settings: Any) -> tuple[list[Any], list[Any]]:
    found = []
    for name in ("first", "second"):
        batch = {"training__micro_batch": 2 // ranks}
        job = make_job(tmp_path / name, model, world_size=ranks, device="cuda", **COMMON, **batch, **settings)
        with mock.patch.dict(os.environ, DETERMINISTIC):
            started = {"ranks": ranks, "port": 29_700 + ranks} if ranks > 1 else {}
            done = run_worker("llmsys_exp.workers.train", job.folder, **started)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found.append(figures(job.folder))
    return found[0], found[1]


@pytest.mark.parametrize("name", CASES)
def test_two_runs_come_out_the_same_to_the_bit(tmp_path: Path, model: Path, name: str):
    first, second = run_twice(tmp_path, model, ranks=1, **CASES[name])
    assert len(first) == COMMON["training__max_steps"] + 2
    assert first == second


def test_two_ranks_come_out_the_same_to_the_bit(tmp_path: Path, model: Path):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    first, second = run_twice(tmp_path, model, ranks=2, **CASES["full-2"])
    assert first == second
