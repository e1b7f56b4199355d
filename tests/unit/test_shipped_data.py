"""The shipped data set is what its script makes, and its parts do not overlap."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "data"


def load_script(name: str = "make_house_style"):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read(name: str) -> list[dict[str, str]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def goods(rows: list[dict[str, str]]) -> set[tuple[str, str]]:
    fields = [dict(part.split(": ") for part in row["output"].split(" | ")) for row in rows]
    return {(one["item"], one["city"]) for one in fields}


def test_the_files_are_what_the_script_makes():
    for name, rows in load_script().make().items():
        assert read(name) == rows


def test_the_files_of_long_rows_are_what_their_script_makes():
    load_script()  # the other takes its orders from there
    for name, rows in load_script("make_order_book").make().items():
        assert read(name) == rows
        assert all(row["output"].count("\n") == row["input"].count("\n") >= 2 for row in rows)


def test_training_heldout_and_prompts_share_no_combination():
    parts = [read(name) for name in ("house_style_train.json", "house_style_heldout.json", "prompts.json")]
    assert [len(part) for part in parts] == [400, 64, 48]
    combinations = [goods(part) for part in parts]
    assert sum(map(len, combinations)) == len(set.union(*combinations)) == 512


def test_some_heldout_cities_are_never_seen_in_training():
    seen = {city for _, city in goods(read("house_style_train.json"))}
    unseen = {city for _, city in goods(read("house_style_heldout.json"))} - seen
    assert len(unseen) >= 3
