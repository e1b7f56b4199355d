"""How long a sweep still takes: forecasts scaled by what is done, as many at once as run, nothing guessed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.gate.gate import gate_points
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, PLANNED, RUNNING, SKIPPED, PointState
from llmsys_exp.sweeps.points.find import points_of
from llmsys_exp.sweeps.points.point import Point
from llmsys_exp.sweeps.running import left as module
from llmsys_exp.sweeps.running.left import FORECAST, PACE, time_left, told


@pytest.fixture(autouse=True)
def _nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_gone", lambda now: False)


def sweep(figures: Sequence[dict[str, Any]], **options: Any) -> Sweep:
    points = [Point(number, "", (f"seed={number}",)) for number in range(1, len(figures) + 1)]
    return Sweep("id", "name", "train", (), points, ".", options, [{"figures": one} for one in figures])


def states(*told_of: tuple[str, float | None]) -> dict[int, PointState]:
    """Done points with their seconds, running ones with those since their start."""
    found: dict[int, PointState] = {}
    for number, (state, seconds) in enumerate(told_of, start=1):
        fields: dict[str, Any] = {}
        if state == RUNNING and seconds is not None:
            since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
            fields = {"since": since.isoformat(timespec="seconds")}
        elif seconds is not None:
            fields = {"seconds": seconds}
        found[number] = PointState(number, state, 1, fields)
    return found


def test_forecasts_are_scaled_by_what_done_points_took():
    asked = sweep([{"train_s": 10.0}, {"train_s": 40.0}, {"train_s": 20.0}])
    left = time_left(asked, states((DONE, 30.0), (PLANNED, None), (PLANNED, None)))
    assert (left.seconds, left.by) == (180.0, FORECAST), "three times as long as forecast: 120 and 60"


def test_as_many_run_at_once_as_do():
    asked = sweep([{"train_s": 60.0}] * 5)
    now = states((DONE, 60.0), (RUNNING, 30), (RUNNING, 30), (PLANNED, None), (PLANNED, None))
    assert time_left(asked, now).seconds == pytest.approx(90, abs=2), "30 of those that run, then two beside"
    assert time_left(asked, now, at_once=4).seconds == pytest.approx(60, abs=2)


def test_forecast_of_known_steps_stands_before_anything_is_done_and_that_of_rows_only_after():
    waiting = states((PLANNED, None), (PLANNED, None))
    assert time_left(sweep([{"train_s": 5.0}] * 2), waiting).seconds == 10.0
    by_row = sweep([{"row_s": 0.1}, {"row_s": 0.3}])
    assert time_left(by_row, waiting).seconds is None
    assert time_left(by_row, states((DONE, 50.0), (PLANNED, None))).seconds == pytest.approx(150.0)


def test_without_a_forecast_the_pace_counts_and_without_either_nothing_is_said():
    asked = sweep([{}] * 3)
    begun = states((RUNNING, 5), (PLANNED, None), (SKIPPED, None))
    assert time_left(asked, begun).seconds is None
    assert told(asked, begun, time_left(asked, begun)) == (
        "0/3 done, 1 running, 1 skipped, time left unknown until one is done"
    )
    later = states((DONE, 600.0), (PLANNED, None), (SKIPPED, None))
    left = time_left(asked, later)
    assert (left.seconds, left.by) == (600.0, PACE)
    assert told(asked, later, left) == "1/3 done, 1 skipped, about 10 min left"
    assert told(asked, later, None) == "1/3 done, 1 skipped"


def test_retried_settings_have_no_forecast_and_an_ended_sweep_no_time_left():
    asked = sweep([{"train_s": 10.0}] * 2)
    now = states((DONE, 20.0), (PLANNED, None))
    now[2].overrides = ("training.micro_batch=1",)
    assert time_left(asked, now).by == PACE
    ended = states((DONE, 20.0), (FAILED, 3.0))
    assert told(asked, ended, time_left(asked, ended)) == "1/2 done, 1 failed"


def test_gate_says_how_long_each_point_takes():
    base = ["model=gpt2", "hardware=a10g", "gate.policy=skip", "zero.stage=2", "offload=none"]
    points = points_of(base, ["training.max_steps=10,20,null", "training.micro_batch=1,4"], None, "train")
    figures = [one.figures for one in gate_points(points, verb="train")]
    assert [one.get("train_s") for one in figures[:4]] == [
        pytest.approx(steps * one["step_s"], abs=1e-3)
        for steps, one in zip([10, 10, 20, 20], figures, strict=False)
    ]
    assert figures[5]["row_s"] == pytest.approx(figures[5]["step_s"] / 4, rel=1e-3)
    on_cpu = points_of(["model=gpt2", "hardware=cpu"], ["seed=1,2"], None, "train")
    assert "step_s" not in gate_points(on_cpu, verb="train", policy="skip")[0].figures
