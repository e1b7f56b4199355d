"""Forecasts against measured memory. No fitted constant enters allocated or reserved figures of training."""

import json
import statistics

import pytest

import planner
from benchmarks.measured import measured_rows
from planner.parsing import parse_training_case
from planner.tables import DATA
from planner.units import GIB

# Of the sweep's points those of each kind and near the limit; `make accuracy` plays them all.
POINTS = {"g010", "g046", "g048", "gs014", "gs017"}
ROWS = [row for row in measured_rows() if not row["id"].startswith("g") or row["id"] in POINTS]
OK = [row for row in ROWS if row["measured"]["status"] == "ok"]
LIMITED = [row for row in ROWS if row["case"].get("memory_limit_gib") is not None]
UNLIMITED = [row for row in OK if row["case"].get("memory_limit_gib") is None]

WORST = 0.003
# Rows whose allocated peak is off by more (percent), and what is known: where the figures part. None is explained.
OFF = {
    "w016": (0.6, "DeepSpeed's checkpoints in main memory: one activation too much within backward"),
    "w021": (
        -0.33,
        "stage 3, Liger: the outermost module holds the tied weight, which leaves less room to fetch ahead",
    ),
    "s003": (
        1.18,
        "Phi: transformers 5.17, which was measured, turns queries and keys otherwise than 5.23 does",
    ),
    "x008": (-1.09, "8-bit base: 0.04 GiB short within backward"),
    "t085": (-0.30, "4-bit base: 0.01 GiB short from loading on"),
}
RESERVED_WORST = 0.11
RESERVED_OFF = {
    "x013": (-14.8, "mixture of experts: 1.1 GiB more for the first step after another"),
}
# Limits within 4 % of the boundary that are judged wrongly; the band calls the last two tight.
MISJUDGED = {
    "b007": "2 % below the forecast, survived",
    "gs014": "1.2 % below the forecast, survived",
    "t009": "2 MiB below the forecast, survived",
    "t027": "0.4 % above the forecast at most, did not survive",
    "t043": "0.4 % above the forecast at most, did not survive",
}


def without_limit(row):
    return {k: v for k, v in row["case"].items() if k != "memory_limit_gib"}


@pytest.fixture(scope="module")
def forecasts():
    """By row: allocated and reserved peak in GiB, and whether it survives its limit. Each setting is played once."""
    by_setting = {}
    for row in ROWS:
        by_setting.setdefault(json.dumps(without_limit(row), sort_keys=True), []).append(row)
    said = {}
    for rows in by_setting.values():
        forecast = planner.forecast_training(parse_training_case(without_limit(rows[0])))
        for row in rows:
            limit = row["case"].get("memory_limit_gib")
            survives = None if limit is None else forecast.survives(int(limit * GIB))
            said[row["id"]] = (
                forecast.peak_allocated_bytes / GIB,
                forecast.peak_reserved_bytes / GIB,
                survives,
            )
    return said


def errors(forecasts, rows, name):
    which = ("peak_allocated_gib", "peak_reserved_gib").index(name)
    return {row["id"]: forecasts[row["id"]][which] / row["measured"][name] - 1 for row in rows}


def test_there_are_rows_to_judge_by():
    assert len(OK) >= 231
    assert len(LIMITED) >= 53


def test_allocated_peak(forecasts):
    found = errors(forecasts, OK, "peak_allocated_gib")
    assert statistics.mean(map(abs, found.values())) <= 0.001
    assert statistics.median(map(abs, found.values())) <= 0.0001
    assert {row: error for row, error in found.items() if abs(error) > WORST and row not in OFF} == {}


@pytest.mark.parametrize("row_id", OFF)
def test_what_is_off_is_off_by_as_much_as_is_said(forecasts, row_id):
    """A row that gets better leaves the list."""
    error = errors(forecasts, OK, "peak_allocated_gib")[row_id]
    assert 100 * error == pytest.approx(OFF[row_id][0], abs=0.1)


@pytest.mark.parametrize("row_id", RESERVED_OFF)
def test_reserved_memory_that_is_off_is_off_by_as_much_as_is_said(forecasts, row_id):
    error = errors(forecasts, UNLIMITED, "peak_reserved_gib")[row_id]
    assert 100 * error == pytest.approx(RESERVED_OFF[row_id][0], abs=2)


def test_reserved_peak(forecasts):
    found = errors(forecasts, UNLIMITED, "peak_reserved_gib")
    assert statistics.mean(map(abs, found.values())) <= 0.02
    assert statistics.median(map(abs, found.values())) <= 0.003
    assert {r: e for r, e in found.items() if abs(e) > RESERVED_WORST and r not in RESERVED_OFF} == {}


def test_limits_are_judged_rightly_but_for_those_named(forecasts):
    survived = {row["id"]: row["measured"]["status"] == "ok" for row in LIMITED}
    wrong = {row_id for row_id in survived if forecasts[row_id][2] != survived[row_id]}
    assert wrong == set(MISJUDGED)


def test_kv_tokens_of_a_measured_start():
    row = json.loads((DATA / "measured/h200-serving.jsonl").read_text().splitlines()[0])
    assert planner.predict(row["case"]).kv_tokens == pytest.approx(row["measured"]["kv_tokens"], rel=0.01)
