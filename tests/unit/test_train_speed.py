"""The speed benchmark: data as described, and a verdict that sees what falls short."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from benchmarks import train_speed
from benchmarks.train_rivals import RIVALS, llmsys, llmsys_recommended
from benchmarks.train_rivals.inputs import make_rows
from benchmarks.train_rivals.job import Job
from llmsys_exp.config.compose import compose_config

JOB = Job("/tmp/nowhere", "llama3_2_1b", "lora", "cuda", 16)


def row(name: str, *speeds: float, loss: float = 2.0) -> dict[str, Any]:
    """A program that did so many tokens a second, round by round."""
    turns = [{"round": at, "tokens": speed, "seconds": 1.0} for at, speed in enumerate(speeds, start=1)]
    return {"program": name, "status": "ok", "turns": turns, "loss": loss}


GOOD = [
    row("handwritten", 100, 200, 300),
    row("hf_trainer", 90, 180, 270),
    row("llama_factory", 80, 160, 240),
    row("llmsys", 101, 202, 299),
    row("llmsys_recommended", 150, 290, 450),
]


def test_ratio_compares_the_same_rounds():
    assert train_speed.ratio(row("llmsys", 10, 40), row("hf_trainer", 10, 20)) == 1.5


def test_all_goals_met_says_nothing():
    assert train_speed.misses(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (row("llmsys", 97, 194, 291), "of handwritten, wanted 0.99"),
        (row("llama_factory", 120, 230, 310), "of llama_factory, wanted 1.0"),
        (row("llmsys_recommended", 110, 210, 320), "recommended settings reach"),
        (row("hf_trainer", 90, 180, 270, loss=2.5), "not the same training"),
        (
            {"program": "llama_factory", "status": "failed", "turns": [], "log": "gone"},
            "llama_factory failed",
        ),
    ],
)
def test_what_falls_short_is_told(changed: dict[str, Any], told: str):
    rows = [changed if one["program"] == changed["program"] else one for one in GOOD]
    assert any(told in text for text in train_speed.misses(rows))


def test_rows_have_the_lengths_of_instruction_data():
    rows = make_rows(JOB)
    tokens = [len(prompt.split()) + len(answer.split()) + 1 for prompt, answer in rows]
    assert 230 < statistics.mean(tokens) < 270
    assert max(tokens) == JOB.max_length
    assert min(tokens) >= 24
    assert rows == make_rows(JOB)


@pytest.mark.parametrize("more", [llmsys.equal(JOB), llmsys_recommended.settings(JOB)])
def test_our_command_lines_compose(more: tuple[str, ...]):
    config = compose_config(llmsys.overrides(JOB, *more))
    assert config.method.lora.alpha == JOB.lora_alpha


def test_packed_batches_hold_as_many_tokens():
    assert llmsys_recommended.packed_micro_batch(JOB) == 4


def test_every_rival_has_its_module():
    assert set(RIVALS) == {*train_speed.GOALS, "llmsys", "llmsys_recommended"}
