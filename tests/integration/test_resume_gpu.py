"""Resuming on a CUDA device: mixed precision, offload and quantised bases, and what fp16's loss scaling leaves out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from test_resume import SAVED, losses, notes, summary
from tiny_jobs import make_job, make_model, run_worker

from llmsys_exp.runs.paths import RunPaths

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

DROPOUT = {"method__lora": {"dropout": 0.3}}
BF16 = {"training__dtype": "bf16"}
CASES: dict[str, dict[str, Any]] = {
    **{f"full-{stage}": {"method__kind": "full", "zero__stage": stage, **BF16} for stage in range(4)},
    **{f"lora-{stage}": {"zero__stage": stage, **BF16, **DROPOUT} for stage in range(4)},
    "full-2-fp16": {"method__kind": "full", "zero__stage": 2, "training__dtype": "fp16"},
    "full-2-offload": {
        "method__kind": "full",
        "zero__stage": 2,
        "offload__optimizer": "cpu",
        "training__optimizer": "deepspeed_adamw",
        **BF16,
    },
    "full-3-offload": {
        "method__kind": "full",
        "zero__stage": 3,
        "offload__optimizer": "cpu",
        "offload__param": "cpu",
        "training__optimizer": "deepspeed_adamw",
        **BF16,
    },
}
if importlib.util.find_spec("bitsandbytes"):
    CASES |= {f"qlora-{stage}": {"method__kind": "qlora", "zero__stage": stage, **BF16} for stage in (2, 3)}
# at a scale of 2^32 the first gradients are beyond what fp16 holds
OVERFLOW = {
    "method__kind": "full",
    "zero__stage": 2,
    "training__dtype": "fp16",
    "training__initial_scale_power": 32,
    "training__max_steps": 24,
    "training__epochs": 9.0,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, RunPaths], Any]:
    import torch

    if not torch.cuda.device_count():
        pytest.skip("needs a CUDA device")
    base = tmp_path_factory.mktemp("gpu")
    make_model(base / "model")
    made, arguments = {}, []
    for name, settings in CASES.items():
        for kind in ("whole", "cut"):
            job = make_job(base / f"{name}-{kind}", base / "model", device="cuda", **SAVED | settings)
            made[f"{name}-{kind}"] = job
            arguments.append(Path(f"{job.folder}@5" if kind == "cut" else job.folder))
    made["overflow"] = make_job(base / "overflow", base / "model", device="cuda", **SAVED | OVERFLOW)
    process = run_worker("life_jobs", *arguments, made["overflow"].folder)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return made, process


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_a_gpu_goes_on_to_the_same_losses(runs, name):
    whole, cut = losses(runs[0][f"{name}-whole"]), losses(runs[0][f"{name}-cut"])
    assert summary(runs[0][f"{name}-cut"])["resumed_from"] == [4]
    assert [step for step, *_ in cut] == [step for step, *_ in whole]
    # sums in backward may be taken in another order each time
    for column in (1, 2):
        found, wanted = ([row[column] for row in table if row[column]] for table in (cut, whole))
        assert found == pytest.approx(wanted, rel=2e-3)


def test_steps_that_overflow_fp16_are_left_out_and_counted_apart(runs):
    figures = summary(runs[0]["overflow"])
    assert figures["overflow_steps"] > 0 and figures["bad_steps"] == 0
    assert figures["loss"]["last"] < figures["loss"]["first"]
    assert not notes(runs[1], "diverged")


def test_random_states_of_the_gpu_are_in_the_checkpoint(runs):
    newest = runs[0]["lora-2-cut"].checkpoints / "step-00000006" / "random-0.json"
    assert json.loads(newest.read_text(encoding="utf-8"))["cuda"]
