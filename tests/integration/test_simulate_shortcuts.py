"""What stands in for DeepSpeed's bookkeeping changes no answer of the simulation, and everything is put back."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks.trace_check.configs import config_of

pytestmark = pytest.mark.engine
LORA = {"method": "lora", "lora": {"r": 4, "target_modules": "all-linear"}, "gradient_checkpointing": True}
GATHERED_TOGETHER = {
    "zero_optimization": {"stage3_param_persistence_threshold": 0, "reduce_bucket_size": 40_000}
}
CASES: dict[str, dict[str, Any]] = {
    "adapters, recomputed": LORA,
    "parts of unequal size": {"method": "full", "world_size": 3, "deepspeed": GATHERED_TOGETHER},
    "two micro-batches, many ranks": {"method": "full", "world_size": 64, "grad_accum": 2},
}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def answer(change: dict[str, Any]) -> dict[str, Any]:
    """All that a simulation says, but for its time and the order of requests in which DeepSpeed walks sets."""
    from planner.simulate.peak import largest_at_peak
    from planner.simulate.tier import simulation

    config = {**config_of("llama"), "num_hidden_layers": 2}
    done = simulation({"hf_config": config, "zero_stage": 3, "world_size": 2, "seq_len": 128, **change})
    said = done.forecast
    return {
        "allocated": said.peak_allocated_bytes,
        "reserved": said.peak_reserved_bytes,
        "required": said.required_bytes,
        "phases": said.phases,
        "components": said.components,
        "largest": largest_at_peak(done.run.recorder),
        "requests": sorted(nbytes for _, nbytes, _ in done.run.arena.events),
    }


def test_they_are_made_for_the_deepspeed_that_is_installed() -> None:
    from planner.simulate import shortcuts

    assert shortcuts.digest() == shortcuts.DIGEST, "read what changed, then set DIGEST"


@pytest.mark.parametrize("change", CASES.values(), ids=CASES.keys())
def test_answers_are_those_of_deepspeeds_own_code(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.simulate import shortcuts

    short = answer(change)
    monkeypatch.setattr(shortcuts, "DIGEST", "of another DeepSpeed")
    assert list(shortcuts.shortcuts()) == []
    assert answer(change) == short


def muon() -> set[str]:
    return {name for name in sys.modules if name.startswith("deepspeed.runtime.zero.muon")}


def test_muon_is_compiled_for_who_imports_it_later() -> None:
    before = muon()
    assert answer(LORA)["allocated"] > 0
    assert muon() == before
