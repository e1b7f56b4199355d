"""The shipped data set is what its script makes, and its parts do not overlap."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from llmsys_exp.workers.data.rows import read_rows

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


def test_the_stand_in_prompts_are_what_their_script_makes():
    load_script("alpaca_wordings")  # the other takes its words from there
    script = load_script("make_alpaca_prompts")
    for name, rows in script.make().items():
        assert read(name) == rows
        kinds = Counter(row["dataset"].removeprefix("standin_") for row in rows)
        assert kinds == script.COUNTS
        assert sum(script.COUNTS.values()) == 805


def test_the_stand_in_prompts_are_as_many_and_as_long_as_those_of_alpacaeval():
    texts = [row["instruction"] for row in read("alpaca_prompts.json")]
    assert len(set(texts)) == len(texts) == 805
    words = [len(text.split()) for text in texts]
    assert 19 <= statistics.median(words) <= 25  # 28 tokens of SmolLM2's tokenizer
    assert 28 <= statistics.mean(words) <= 34  # 39 tokens
    assert min(words) >= 4
    assert 200 <= max(words) <= 400
    assert sum(text.startswith("Write a") for text in texts) >= 80
    assert all("{" not in text for text in texts)


def test_prompts_are_read_from_alpacaevals_own_rows(tmp_path: Path):
    """The real file has answers of another model and where a prompt came from; nothing is left to rename."""
    rows = [{"dataset": "koala", "instruction": f"Say {n}.", "output": "n", "generator": "g"} for n in (1, 2)]
    file = tmp_path / "alpaca_eval.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    found = read_rows(file, {}, need_output=False)
    assert [row.request for row in found] == ["Say 1.", "Say 2."]
    assert [row.max_new_tokens for row in found] == [None, None]
