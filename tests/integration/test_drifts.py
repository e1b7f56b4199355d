"""Drifts planted into recorded runs are found, and where the run is done again, blamed."""

from __future__ import annotations

import planted
import pytest
from planted import ASK, DECOYS, PLANTS, TRAIN, Plant, World

pytestmark = pytest.mark.engine

DONE_AGAIN = ("two rows swapped", "another learning rate", "a prompt changed")
"""Each costs a run; `python tests/integration/planted.py` does all of them."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return planted.make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_each_planted_drift_is_found_and_named_with_what_it_may_change(world: World, plant: Plant):
    with plant.plant(world) as overrides:
        drifts = world.drifts(plant.which, overrides, afresh=plant.afresh)
        again = plant.name in DONE_AGAIN
        outcome = world.run_again(plant.which, overrides, [*drifts, *DECOYS]) if again else None
    assert planted.matching(plant, drifts) is not None, [(one.kind, one.key, one.effect) for one in drifts]
    if outcome is not None:
        assert not outcome.reproduced
        blamed = outcome.causes[0].drift
        assert (blamed.kind, blamed.key) == (plant.kind, plant.key)


def test_without_drift_nothing_is_found_and_the_run_comes_out_the_same_to_the_bit(world: World):
    before = {file: file.read_bytes() for file in world.runs[TRAIN].rglob("*") if file.is_file()}
    drifts = [one for which in (ASK, TRAIN) for one in world.drifts(which, [], afresh=True)]
    assert [one.what for one in drifts] == []
    outcome = world.run_again(TRAIN, [], drifts)
    assert outcome.reproduced, [row for row in outcome.rows if row.passed is False]
    assert outcome.relation.name == "same_bits"
    losses = [row for row in outcome.rows if "loss" in row.name]
    assert len(losses) >= 4
    assert all(row.tolerance == "exact" and row.logged == row.reproduced for row in losses)
    assert outcome.found.manifest["reproduces"] == outcome.logged.id
    assert outcome.found.file.parent.parent.parent == world.folder / "again"
    assert {file: file.read_bytes() for file in before} == before
