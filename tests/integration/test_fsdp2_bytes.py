"""Engine fsdp2 against torch's own `fully_shard`: a tiny model on a fake process group, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from forked import run_forked
from shard_steps import CONFIG, TOKENS, VARIANTS
from tiny_jobs import events_of

import planner
from planner.training import TrainingRun

pytestmark = pytest.mark.engine

SLACK = 0.01
"""`_chunk_cat` on the CPU makes a temporary of its own; ids, positions and optimizer steps are a few hundred bytes."""


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, int]]:
    done = run_forked("shard_steps", *VARIANTS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return {event["name"]: event for event in events_of(done, "steps")}


def played(name: str) -> dict[str, int]:
    case: dict[str, Any] = {
        "hf_config": CONFIG, "method": "full", "engine": "fsdp2", "optimizer": "torch_adamw", "world_size": 4,
        "seq_len": TOKENS, "gradient_checkpointing": True, "attention": "eager", "gpu": "cpu",
    }  # fmt: skip
    run = TrainingRun(planner.parse_training_case({**case, **VARIANTS[name]}))
    run.play(steps=2)
    peaks: dict[str, int] = {}
    for phase in run.arena.phases:  # of several micro-batches the highest
        peaks[phase.name] = max(peaks.get(phase.name, 0), phase.peak_bytes)
    rest = next(phase.end_bytes for phase in run.arena.phases if phase.name == "engine start")
    return {"rest": rest, **peaks}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_phase_holds_the_bytes_that_torch_holds(seen, name):
    forecast = played(name)
    real = {phase: size for phase, size in seen[name].items() if phase not in ("event", "name")}
    assert {phase: forecast[phase] for phase in real} == pytest.approx(real, rel=SLACK)
