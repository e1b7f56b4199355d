"""docs/reproduce.md says what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsys_exp.reproduce.drift import KINDS
from llmsys_exp.reproduce.tolerances import FIRST_LOSS, LATER_LOSSES, PEAK_MEMORY, SCORES, Relation, Tolerance

PAGE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("relation", FIRST_LOSS, ids=lambda one: one.name)
def test_the_bounds_on_losses_are_those_of_the_table(relation: Relation):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {relation.value} |")]
    bounds = (*FIRST_LOSS[relation][:2], *LATER_LOSSES[relation][:2])
    assert [cell.strip() for cell in line.split("|")[2:6]] == [Tolerance(one, "").words for one in bounds]


@pytest.mark.parametrize(("name", "table"), [("task score", SCORES), ("peak of a GPU", PEAK_MEMORY)])
def test_the_other_bounds_are_those_of_the_table(name: str, table: dict[Relation, tuple[float | None, str]]):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    columns = (Relation.same_machine, Relation.same_kind, Relation.other, Relation.other_world)
    told = [Tolerance(table[one][0], "", absolute=name == "task score").words for one in columns]
    assert [cell.strip() for cell in line.split("|")[2:6]] == told


def test_every_kind_of_drift_is_explained():
    for kind in KINDS:
        assert kind in PAGE.lower(), kind
