"""Another tool's log against a run of ours: curves, rates and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.importers import LoggedRun
from llmsys_exp.reproduce.judge.elsewhere import rows_of
from llmsys_exp.reproduce.judge.row import Row
from llmsys_exp.reproduce.series import log_of_rows

OURS = [{"step": at, "loss": 5.0 - 0.1 * at, "lr": 1e-3 * (21 - at) / 20} for at in range(1, 21)]


def theirs(*, scale: float = 1.0, behind: int = 0, over: int = 2) -> LoggedRun:
    """A log with a line every second step: means of two, rates of `behind` steps before."""
    steps: list[dict[str, Any]] = []
    for at in range(2, 21, 2):
        loss = sum(row["loss"] for row in OURS[at - over : at]) / over * scale
        rate = OURS[max(0, at - 1 - behind)]["lr"]
        steps.append({"step": at, "loss": loss, "learning_rate": rate})
    evaluation = [{"step": 0, "loss": 6.0}, {"step": 20, "loss": 3.0 * scale}]
    return LoggedRun(steps, evaluation, Path("log"), "trainer_state", mean_of_steps=over, total_steps=20)


def compared(run: LoggedRun) -> list[Row]:
    evaluation = {"before": {"loss": 6.0}, "after": {"loss": 3.0}}
    return [row for row in rows_of(run, log_of_rows(OURS), evaluation) if row is not None]


def test_a_run_of_the_same_curve_passes_and_single_steps_are_only_shown():
    rows = compared(theirs())
    assert all(row.passed is not False for row in rows), rows
    assert sum(row.name.startswith("mean loss") for row in rows) == 5
    assert [row.passed for row in rows if row.name.startswith("loss, worst")] == [None]
    assert {"held-out loss before", "held-out loss after", "optimizer steps"} <= {row.name for row in rows}


def test_a_curve_that_runs_elsewhere_fails_from_its_first_stretch_to_its_end():
    failed = {row.name for row in compared(theirs(scale=1.2)) if row.passed is False}
    assert "held-out loss after" in failed
    assert sum(name.startswith("mean loss") for name in failed) == 5


def test_rates_that_are_logged_a_step_late_are_the_same_rates():
    (row,) = [one for one in compared(theirs(behind=1)) if one.name.startswith("learning rate")]
    assert row.passed
    assert "ours of step -1" in row.name


def test_fewer_steps_are_told():
    short = theirs()
    run = LoggedRun(short.steps, [], short.source, short.format, 2, total_steps=30)
    (row,) = [one for one in compared(run) if one.name == "optimizer steps"]
    assert row.passed is False
