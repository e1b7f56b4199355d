"""Bands around forecasts: what the shipped file says, where it comes from, and what verdicts make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from benchmarks import residuals as made
from planner.uncertainty import (
    CLASSES,
    DERIVED,
    EXPANDABLE,
    FIGURES,
    MIXTURES,
    SIMULATED_0_2,
    SIMULATED_3,
    SIMULATED_CLASSES,
    STAGE_0_2,
    STAGE_3,
    UNCOMMON,
    residual_class,
    residuals_of,
    simulated_residuals,
)
from planner.verdict import judge

SHALLOW = {**planner.model_config("llama3_2_1b"), "num_hidden_layers": 2}
BASE = {
    "hf_config": SHALLOW,
    "method": "full",
    "world_size": 2,
    "zero_stage": 2,
    "gradient_checkpointing": True,
}


def case(**changes):
    return planner.parse_training_case({**BASE, **changes})


@pytest.fixture(scope="module")
def rows():
    return made.held_out()


@pytest.fixture(scope="module")
def simulated():
    return made.simulated()


def test_the_shipped_bands_are_what_the_script_makes(rows, simulated):
    assert made.SHIPPED.read_text(encoding="utf-8") == made.document(rows, simulated)


def test_measured_rows_that_were_simulated_make_the_bands_of_simulations(simulated):
    assert {row.group for row in simulated} == set(SIMULATED_CLASSES)
    assert len(simulated) > 200
    for figure in FIGURES:
        inside = [
            low <= row.residuals[figure] <= high
            for row in simulated
            for low, high in [residuals_of(row.group).shares[figure]]
        ]
        assert sum(inside) / len(inside) >= 0.9


def test_a_simulated_job_is_judged_by_the_errors_of_simulations():
    assert simulated_residuals(case(zero_stage=3, dtype="fp32")).name == SIMULATED_3
    assert simulated_residuals(case(zero_stage=1)).name == SIMULATED_0_2


def test_every_row_that_was_frozen_first_and_measured_counts_or_is_named(rows):
    frozen = sum(len(made.read_lines(made.RESULTS / f"{name}-frozen.jsonl")) for name in made.SETS)
    failed = sum(
        row["measured"]["status"] != "ok"
        for name in made.SETS
        for row in made.read_lines(made.RESULTS / f"{name}-measured.jsonl")
    )
    assert len(rows) == frozen - failed
    assert len(rows) > 100


def test_bands_cover_the_rows_they_come_from(rows):
    for figure in FIGURES:
        below = [row.residuals[figure] <= residuals_of(row.group).shares[figure][1] for row in rows]
        assert sum(below) / len(below) >= made.CONFIDENCE


def test_left_out_rows_stay_below_the_upper_end_as_often_as_claimed(rows):
    upper = {figure: up for group, figure, _, up in made.coverage(rows) if group == "all"}
    assert upper["peak_allocated"] >= made.CONFIDENCE
    assert upper["required"] >= made.CONFIDENCE  # the one that the verdict goes by
    assert upper["peak_reserved"] >= 0.94


def test_a_band_holds_the_forecast_and_is_no_narrower_than_the_floor():
    for name in CLASSES:
        for low, high in residuals_of(name).shares.values():
            assert low <= -made.FLOOR
            assert high >= made.FLOOR


def test_the_end_of_many_is_an_order_statistic_and_of_few_their_extreme():
    assert made.end([float(n) for n in range(1, 40)]) == 38
    assert made.end([1.0, 3.0, 2.0]) == 3


def test_few_rows_widen_a_band():
    pooled = [0.1 * n for n in range(-20, 21)]
    assert made.band([0.0, 0.01], pooled)[1] > 1
    assert made.band([0.01 * n for n in range(made.FEWEST)], pooled) == (-made.FLOOR, 0.07)


def test_a_class_without_rows_takes_the_widest_band():
    widest = max(residuals_of(name).shares["required"][1] for name in CLASSES)
    assert residuals_of(DERIVED).rows == 0
    assert residuals_of(DERIVED).shares["required"][1] == widest


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, STAGE_0_2),
        ({"zero_stage": 3}, STAGE_3),
        ({"expandable_segments": True, "zero_stage": 3}, EXPANDABLE),
        ({"zero_stage": 1}, UNCOMMON),
        ({"dtype": "fp32"}, UNCOMMON),
        ({"method": "freeze"}, UNCOMMON),
        ({"zero_stage": 3, "offload_optimizer": "nvme"}, DERIVED),
        ({"gpu": "cpu", "dtype": "fp32"}, DERIVED),
        ({"attention": "flash_attention_2"}, DERIVED),
    ],
)
def test_the_class_of_a_case(changes, name):
    assert residual_class(case(**changes)) == name


def test_mixtures_have_a_class_of_their_own():
    mixture = replace(case().architecture, experts=object())
    assert residual_class(replace(case(), architecture=mixture)) == MIXTURES


def test_fits_needs_the_whole_band_and_tight_only_its_middle():
    forecast = planner.forecast_training(case())
    low, high = forecast.band_bytes("required")
    assert low < forecast.required_bytes < high

    def label(budget_bytes):
        return judge(case(), forecast, budget_bytes=budget_bytes).label

    assert label(high) == "fits"
    assert label(high - 1) == "tight"
    assert label(forecast.required_bytes) == "tight"
    assert label(forecast.peak_allocated_bytes - 1) == "does not fit"


def test_the_band_of_what_is_required_ends_where_that_of_what_is_reserved_does():
    forecast = planner.forecast_training(case())
    assert forecast.band_bytes("required")[1] <= forecast.band_bytes("peak_reserved")[1]


def test_the_answer_shows_the_bands_beside_the_point():
    said = planner.predict(BASE).to_dict()
    bands = said["bands"]
    assert bands["class"] == STAGE_0_2
    assert bands["rows"] == residuals_of(STAGE_0_2).rows
    for figure in FIGURES:
        low, high = bands[f"{figure}_gib"]
        assert low < said[f"{figure}_gib"] < high
