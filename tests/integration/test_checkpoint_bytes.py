"""Bytes on disk against files that DeepSpeed really writes: a tiny model, two ranks on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from forked import run_forked
from save_checkpoints import CONFIG, RANKS, TARGETS
from tiny_jobs import events_of

import planner
from planner.disk import OPTIMIZER, WEIGHTS

pytestmark = pytest.mark.engine

CASES = ("full-0", "full-1", "full-2", "full-3", "lora-2", "lora-3")
# Names, shapes and the configuration are pickled into each file, which only a tiny model shows.
OVERHEAD_BYTES = 110_000
PADDING_BYTES = 1000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    done = run_forked("save_checkpoints", folder, *CASES, ranks=RANKS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return {event["case"]: event for event in events_of(done, "saved")}


def forecast(name: str) -> planner.Forecast:
    method, stage = name.split("-")
    case: dict[str, Any] = {
        "hf_config": CONFIG,
        "method": method,
        "world_size": RANKS,
        "zero_stage": int(stage),
        "optimizer": "torch_adamw",
        "gpu": "cpu",
        "seq_len": 16,
    }
    if method == "lora":
        case["lora"] = {"r": 8, "target_modules": TARGETS}
    return planner.forecast_training(planner.parse_training_case(case))


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_takes_the_bytes_that_were_forecast(name: str, saved: dict[str, dict[str, int]]):
    disk, found = forecast(name).disk, saved[name]
    said = {"weights": disk.get(WEIGHTS, 0), "optimizer": disk.get(OPTIMIZER, 0)}
    if name == "full-0":  # one file holds both
        said = {"weights": sum(said.values()), "optimizer": 0}
    for part, nbytes in said.items():
        assert -PADDING_BYTES <= found[part] - nbytes <= OVERHEAD_BYTES, (part, nbytes, found[part])
