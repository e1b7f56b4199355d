"""Logged against reproduced: rows, tolerances, and which drift a failure is blamed on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.blame import likely_causes
from llmsys_exp.reproduce.drift import Drift, Effect, most_serious_first
from llmsys_exp.reproduce.effects import of_code, of_package, of_setting
from llmsys_exp.reproduce.judge import inference, training
from llmsys_exp.reproduce.judge.row import number_row, parts_of
from llmsys_exp.reproduce.judge.training import Terms
from llmsys_exp.reproduce.series import LONGEST_LINE_BYTES, Log, log_of_rows, read_log
from llmsys_exp.reproduce.tolerances import Relation, Tolerance, loss_tolerance

BITS = Terms(Relation.same_bits, "fp32", 0.0, on_gpu=False)
OTHER = Terms(Relation.other, "16 bit", 0.0, on_gpu=True)


def log(*losses: float, lr: float = 1e-3) -> Log:
    return log_of_rows([{"step": at, "loss": loss, "lr": lr} for at, loss in enumerate(losses, start=1)])


def setting(key: str) -> Drift:
    reach = of_setting(key)
    return Drift("command line", key, key, reach.effect, reach.shows_in)


def test_the_worst_step_is_told_and_bits_count_where_runs_are_deterministic():
    rows = {row.name: row for row in training.step_rows(log(3.0, 2.0, 1.0), log(3.0, 2.0, 1.0 + 1e-15), BITS)}
    assert rows["loss of step 1"].passed
    worst = rows["loss, worst of 2 steps (step 3)"]
    assert worst.passed is False
    assert (worst.logged, worst.tolerance) == (1.0, "exact")


def test_other_hardware_is_allowed_its_rounding_and_no_more():
    near, far = log(3.0, 2.0, 1.02), log(3.0, 2.0, 1.2)
    assert all(row.passed for row in training.step_rows(log(3.0, 2.0, 1.0), near, OTHER))
    failed, held = parts_of(list(training.step_rows(log(3.0, 2.0, 1.0), far, OTHER)))
    assert failed == ["later losses"]
    assert "first loss" in held


def test_a_run_that_was_killed_is_compared_by_the_steps_it_had_logged():
    terms = Terms(Relation.same_bits, "fp32", 0.0, on_gpu=False, whole=False)
    rows = list(training.step_rows(log(3.0, 2.0), log(3.0, 2.0, 1.0), terms))
    assert all(row.passed for row in rows)
    assert not all(row.passed for row in training.step_rows(log(3.0, 2.0), log(3.0, 2.0, 1.0), BITS))


@pytest.mark.parametrize(
    ("logged", "found", "passed"),
    [
        (1.0, math.nan, False),
        (math.nan, math.nan, True),
        (math.inf, 1.0, False),
        (0.0, 0.0, True),
        (0.0, 1e-9, False),
    ],
)
def test_figures_that_are_no_numbers_fail_unless_both_are(logged: float, found: float, passed: bool):
    row = number_row("x", "later losses", logged, found, Tolerance(0.01, "why"))
    assert row is not None
    assert row.passed is passed


def test_a_figure_that_only_the_log_has_fails_and_one_that_it_lacks_is_left_out():
    missing = number_row("x", "memory", 3, None, Tolerance(0.1, ""))
    assert missing is not None
    assert missing.passed is False
    assert number_row("x", "memory", None, 3, Tolerance(0.1, "")) is None


def test_tolerances_widen_with_distance():
    order = (Relation.same_bits, Relation.same_machine, Relation.same_kind, Relation.other)
    for first in (True, False):
        for dtype in ("fp32", "bf16"):
            bounds = [loss_tolerance(one, first=first, dtype=dtype).bound for one in order]
            assert bounds == sorted(bounds), bounds
    half = loss_tolerance(Relation.other_world, first=False, dtype="bf16")
    dropped = loss_tolerance(Relation.other_world, first=False, dtype="bf16", dropout=0.1)
    assert dropped.bound > half.bound


@pytest.mark.parametrize(
    ("failed", "held", "blamed"),
    [
        (("learning rate", "later losses", "evaluation"), ("first loss", "tokens"), "training.learning_rate"),
        (("first loss", "later losses", "tokens", "evaluation"), (), "seed"),
        (("first loss", "later losses", "memory", "forecast"), ("tokens",), "training.dtype"),
        (("later losses", "evaluation"), ("first loss", "learning rate"), "training.weight_decay"),
        (("evaluation",), ("first loss", "later losses"), "data.heldout_limit"),
        (("answers",), ("tokens",), "inference.sampling.temperature"),
    ],
    ids=["rate", "seed", "type", "decay", "held-out", "sampling"],
)
def test_what_differs_and_what_does_not_tells_the_cause(
    failed: tuple[str, ...], held: tuple[str, ...], blamed: str
):
    keys = ("training.learning_rate", "seed", "training.dtype", "training.weight_decay", "data.heldout_limit")
    drifts = [setting(key) for key in (*keys, "inference.sampling.temperature")]
    first, *_ = likely_causes(failed, held, drifts)
    assert first.drift.key == blamed


def test_what_changes_nothing_is_not_blamed_for_numbers():
    drifts = [setting("paths.cache"), Drift("packages", "ruff", "ruff", Effect.NOTHING)]
    assert likely_causes(["later losses"], [], drifts) == []


def test_a_forecast_of_newer_code_is_blamed_on_the_planner():
    planner = of_code("planner/network/attention.py")
    drifts = [Drift("code", "planner", "planner", planner.effect, planner.shows_in), setting("paths.cache")]
    first, *_ = likely_causes(["forecast"], ["later losses"], drifts)
    assert first.drift.kind == "code"


def test_the_most_serious_comes_first():
    found = most_serious_first(
        [
            Drift("plan", "a", "a", Effect.NOTHING),
            Drift("packages", "b", "b", Effect.NUMBERS),
            Drift("record", "c", "c", Effect.NUMBERS, blocks=True),
            Drift("driver", "d", "d", Effect.MEMORY),
            Drift("data", "e", "e", Effect.NUMBERS),
        ]
    )
    assert [one.key for one in found] == ["c", "e", "b", "d", "a"]


def test_tables_hold_back_from_calling_anything_harmless_that_they_do_not_know():
    assert of_setting("training.brand_new").effect is Effect.NUMBERS
    assert of_setting("whatever").effect is Effect.NUMBERS
    assert of_code("llmsys_exp/workers/brand_new.py").effect is Effect.NUMBERS
    assert of_code("setup_hook.py").effect is Effect.NUMBERS
    assert of_code("docs/training.md").effect is Effect.NOTHING
    assert of_package("nvidia-cublas-cu13").effect is Effect.NUMBERS
    assert of_package("torchvision").effect is Effect.NOTHING


def test_every_setting_of_today_has_a_reach():
    from llmsys_exp.config.tree import settings_tree

    harmless = [key for key in settings_tree().leaves if of_setting(key).effect is Effect.NOTHING]
    assert {key.partition(".")[0] for key in harmless} <= {
        *("name", "resume", "paths", "gate", "tracking", "launcher", "model", "data", "export", "inference")
    }


def answers(path: Path, *texts: str) -> dict[int, tuple[bytes, bytes]]:
    rows = [{"index": at, "instruction": f"ask {at}", "output": text} for at, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return inference.read_answers(path)


def test_answers_are_compared_one_by_one(tmp_path: Path):
    old, new = answers(tmp_path / "a", "x", "y", "z"), answers(tmp_path / "b", "x", "Y", "z")
    prompts, equal = inference.answer_rows(old, new, BITS, sampled=False)
    assert prompts.passed
    assert (equal.passed, equal.reproduced) == (False, 2)
    assert "prompt 1" in equal.difference
    _, loose = inference.answer_rows(old, new, OTHER, sampled=True)
    assert loose.passed


def test_other_prompts_are_told_from_other_answers(tmp_path: Path):
    old, new = answers(tmp_path / "a", "x", "y"), answers(tmp_path / "b", "x")
    prompts, _ = inference.answer_rows(old, new, BITS, sampled=False)
    assert prompts.passed is False


def test_a_log_is_read_line_by_line_and_what_is_no_figure_is_counted(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    rows: list[Any] = [{"step": 1, "train/loss": 2.5, "lr": 0.1}, {"step": 1, "eval/loss": 2.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text + '{"step": true, "train/loss": 1}\n{"step": 2, "train', encoding="utf-8")
    found = read_log(path)
    assert found.losses.by_step() == {1: 2.5}
    assert found.evaluations.by_step() == {1: 2.0}
    assert found.broken_lines == 2
    assert len(read_log(tmp_path / "none").losses) == 0
    path.write_bytes(b"x" * (LONGEST_LINE_BYTES + 5))
    with pytest.raises(UserError, match="longer than"):
        read_log(path)


def test_a_log_of_more_steps_than_any_run_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llmsys_exp.reproduce.series.MOST_ROWS", 3)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {at}, "train/loss": 1}}\n' for at in range(9)), encoding="utf-8")
    with pytest.raises(UserError, match="more than 3 steps"):
        read_log(path)
