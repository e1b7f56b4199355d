"""The tidy table of a sweep: a row for every point, whatever became of it and of its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from page_samples import end_point, manifest, sample_run, sample_sweep

from llmsys_exp.runs.told import read_told
from llmsys_exp.sweeps.folder import open_sweep
from llmsys_exp.sweeps.ledger.ledger import RUNNING
from llmsys_exp.sweeps.results import table
from llmsys_exp.sweeps.results.best import best_points, measures_of
from llmsys_exp.sweeps.results.figures import run_figures
from llmsys_exp.sweeps.results.rows import results_of
from llmsys_exp.sweeps.results.settings import setting_values, varied

LR = ("training.learning_rate=1e-3", "training.learning_rate=1e-2")


def test_every_state_has_its_row_and_the_files_hold_the_same(tmp_path: Path):
    paths, sweep = sample_sweep(
        tmp_path, [[LR[0], f"training.micro_batch={n}"] for n in range(1, 7)], skipped=[6]
    )
    end_point(paths, sweep, 1, manifest(1.5))
    end_point(paths, sweep, 2, None, kind="oom_gpu", what="The GPU ran out of memory")
    sweep.ledger(paths).move(
        3, RUNNING, pid=1, born=1, host="elsewhere", boot="x", folder=str(tmp_path / "r3")
    )
    sample_run(tmp_path / "r3", manifest(1.0)).manifest.write_text('{"schema_version": 2, "id": "cut')
    shutil.rmtree(end_point(paths, sweep, 4, manifest(1.2)))
    results, notes = table.write_results(*open_sweep(paths.folder))
    rows = {row["point"]: row for row in results.rows}
    assert notes == [] and results.settings == ("training.micro_batch",)
    assert [rows[n]["state"] for n in rows] == ["done", "failed", "running", "done", "planned", "skipped"]
    first = rows[1]
    assert (first["heldout_loss"], first["loss_last"], first["score"], first["tokens_per_s"]) == (
        1.5,
        1.6,
        0.5,
        2000.0,
    )
    assert (first["peak_planned_gib"], first["peak_measured_gib"], first["peak_off"]) == (10.0, 10.5, 0.05)
    assert (first["host_off"], first["planned_tokens_per_s"], first["disk_planned_gib"]) == (
        -0.25,
        2100.0,
        0.5,
    )
    assert (rows[2]["kind"], rows[2]["error"]) == ("oom_gpu", "The GPU ran out of memory")
    assert (rows[3]["loss_first"], rows[3]["loss_last"], rows[3]["heldout_loss"]) == (3.0, 0.75, None), (
        "as far as it came"
    )
    assert rows[4]["folder"] and rows[4]["heldout_loss"] is None, "its folder was deleted"
    assert rows[6]["needed_gib"] == 20.0 and rows[6]["fix"].startswith("training.micro_batch=1")
    assert "has 16.0 GiB" in rows[6]["reason"]
    for frame in (pd.read_csv(paths.folder / table.CSV), pd.read_parquet(paths.folder / table.PARQUET)):
        assert list(frame.columns) == list(first) and len(frame) == 6
        assert frame["training.micro_batch"].tolist() == [1, 2, 3, 4, 5, 6]
        assert frame["heldout_loss"].dropna().tolist() == [1.5]


def test_settings_are_those_of_the_newest_attempt_and_what_a_point_leaves_open_is_what_its_run_had(
    tmp_path: Path,
):
    paths, sweep = sample_sweep(
        tmp_path, [[LR[0]], [LR[1], "data.max_length=512"], [LR[1], "training.epochs=2"]]
    )
    end_point(paths, sweep, 1, None, kind="other")
    sweep.ledger(paths).move(1, "planned", set=["training.learning_rate=0.5"])
    end_point(paths, sweep, 3, manifest(1.0))
    results = results_of(sweep, sweep.ledger(paths).states())
    assert [row["training.learning_rate"] for row in results.rows] == [0.5, 0.01, 0.01]
    assert [row["data.max_length"] for row in results.rows] == [96, 512, 96], "that of the base"
    assert results.rows[0]["training.epochs"] == 1, "as its run had it"
    assert results.overrides[1][-1] == "training.learning_rate=0.5"


def test_values_are_numbers_words_or_nothing():
    given = ["+a=1e30", "b='x y'", "c=true", "~d", "e=[1,2]", "f=null", "g=NaN", "a=2"]
    assert setting_values(given)["b"] == "x y"
    assert setting_values(given)["a"] == 2 and setting_values(given)["c"] is True
    assert setting_values(given)["d"] is None and setting_values(given)["e"] == "[1,2]"
    assert varied({1: {"a": 1, "b": 1}, 2: {"a": 1, "b": True}, 3: {"a": 1}}) == ["b"]


def test_a_setting_called_like_a_column_has_a_name_of_its_own(tmp_path: Path):
    paths, sweep = sample_sweep(tmp_path, [["+state=1"], ["+state=2"]])
    results = results_of(sweep, sweep.ledger(paths).states())
    assert results.settings == ("setting.state",)
    assert [row["state"] for row in results.rows] == ["planned", "planned"]


def test_files_edited_by_hand_cost_their_figures_only(tmp_path: Path):
    content = manifest(1.5) | {"forecast": {"disk": {"a": "much", "b": 1.0}, "required_gib": "ten"}}
    content["results"] = {"train": {"loss": 7, "speed": [], "tokens_per_s": float("nan")}}
    figures = run_figures(read_told(sample_run(tmp_path / "r", content).folder))
    assert (figures["disk_planned_gib"], figures["tokens_per_s"], figures["loss_last"]) == (1.0, None, 0.75)
    assert figures["heldout_loss"] == 1.5


def test_without_pyarrow_there_is_csv_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths, sweep = sample_sweep(tmp_path, [[LR[0]], [LR[1]]])
    monkeypatch.setattr(table, "find_spec", lambda name: None if name == "pyarrow" else object())
    _, (note,) = table.write_results(paths, sweep)
    assert "pip install pyarrow" in note
    assert (paths.folder / table.CSV).is_file() and not (paths.folder / table.PARQUET).exists()


def test_best_points_are_named_once_and_a_search_decides_what_comes_first(tmp_path: Path):
    paths, sweep = sample_sweep(tmp_path, [[f"seed={n}"] for n in range(3)])
    for number, loss in ((1, 1.5), (2, 1.2), (3, 1.9)):
        end_point(paths, sweep, number, manifest(loss, peak_gib=10 - number))
    rows = results_of(sweep, sweep.ledger(paths).states()).rows
    picks = best_points(rows, measures_of(rows))
    assert [(pick.row["point"], [one.column for one in pick.measures]) for pick in picks] == [
        (2, ["heldout_loss"]),
        (3, ["peak_measured_gib"]),
    ]
    search = {"objective": [{"metric": "peak_gib", "direction": "maximize"}, "loss"]}
    first, *others = best_points(rows, measures_of(rows, search))
    assert (first.row["point"], first.measures[0].column) == (1, "peak_measured_gib")
    assert others[0].row["point"] == 2
