"""Rows from files of every kind, and errors that name file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmsys_exp.workers.data.records import DataError, read_records
from llmsys_exp.workers.data.rows import Row, read_rows

COLUMNS = {"instruction": "instruction", "input": "input", "output": "output"}
ROWS = [{"instruction": "a", "output": "b, c"}, {"instruction": 'say "d"\nand e', "output": "f"}]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '[{"instruction": "i", "output": "o"}, {"output": "o"}]', ["no 'instruction'", "row 2"]),
        ("a.json", '[{"instruction": "i"}]', ["no 'output'", "row 1"]),
        ("a.json", '[{"instruct": "i", "output": "o"}]', ["Did you mean the column 'instruct'"]),
        ("a.json", '[{"instruction": " ", "output": "o"}]', ["'instruction' is empty", "row 1"]),
        ("a.json", '[{"instruction": "i", "output": 3}]', ["'output' is no text", "row 1"]),
        ("a.json", "[]", ["empty", "a.json"]),
        ("a.json", "", ["empty", "a.json"]),
        ("a.jsonl", "", ["empty", "a.jsonl"]),
        ("a.csv", "", ["empty", "a.csv"]),
        ("a.json", '{"instruction": "i", "output": "o"}', ["must hold a list", "not an object"]),
        ("a.json", "[1]", ["must be an object", "row 1"]),
        ("a.json", '[\n{"instruction": "i",\n]', ["Not valid JSON", "a.json:3"]),
        ("a.json", "[" * 100_000, ["Not valid JSON", "a.json"]),
        ("a.json", '{"instruction": "i"}\n{"instruction": "j"}', ["a.json:2", ".jsonl"]),
        ("a.jsonl", '{"instruction": "i", "output": "o"}\n{oops', ["Not valid JSON", "a.jsonl:2"]),
        ("a.jsonl", '\n\n{"instruction": "i"}', ["no 'output'", "line 3"]),
        (
            "a.jsonl",
            b'{"instruction": "i", "output": "o"}\n{"instruction": "\xff"}',
            ["not UTF-8", "a.jsonl:2"],
        ),
        ("a.json", b'[{"instruction": "i",\n"output": "\xe9"}]', ["not UTF-8", "a.json:2"]),
        ("a.csv", "instruction,output\ni,o\ni\n", ["fewer cells", "line 3"]),
        ("a.csv", "instruction,output\ni,o,p\n", ["more cells", "line 2"]),
        ("a.csv", 'instruction,output\n"i,o\n', ["Not valid CSV", "a.csv:2"]),
        ("a.csv", "instruction,answer\ni,o\n", ["no 'output'", "line 2"]),
        ("a.parquet", "instruction,output\ni,o\n", ["no parquet file", "a.parquet"]),
    ],
)
def test_bad_rows_are_named_by_file_and_place(tmp_path, name, text, expected):
    with pytest.raises(DataError) as caught:
        read_rows(write(tmp_path / name, text), COLUMNS)
    assert all(part in str(caught.value) for part in expected), str(caught.value)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_missing_file_is_the_users_to_mend(tmp_path):
    for name in ("none.json", "none.jsonl", "none.csv"):
        with pytest.raises(DataError, match="cannot be read: No such file"):
            read_rows(tmp_path / name, COLUMNS)


def test_all_kinds_of_files_give_the_same_rows(tmp_path):
    import pandas as pd

    write(tmp_path / "x.json", json.dumps(ROWS))
    write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, ROWS)))
    pd.DataFrame(ROWS).to_csv(tmp_path / "x.csv", index=False)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "x.parquet")
    for name in ("x.json", "x.jsonl", "x.csv", "x.parquet"):
        assert [row for _, row in read_records(tmp_path / name)] == ROWS, name
    assert [where for where, _ in read_records(tmp_path / "x.parquet")][1].endswith("x.parquet, row 2")


def test_line_separators_inside_a_json_text_do_not_end_the_line(tmp_path):
    file = tmp_path / "x.jsonl"
    write(file, json.dumps({"instruction": "a\u2028b\x85c", "output": "d"}, ensure_ascii=False) + "\r\n")
    assert read_rows(file, COLUMNS) == [Row("a\u2028b\x85c", "", "d")]


def test_columns_can_be_renamed(tmp_path):
    rows = [{"q": "a", "context": "b", "a": "c"}, {"q": "d", "a": "e"}]
    columns = {"instruction": "q", "input": "context", "output": "a"}
    found = read_rows(write(tmp_path / "x.json", json.dumps(rows)), columns)
    assert found == [Row("a", "b", "c"), Row("d", "", "e")]
    assert found[0].request == "a\n\nb"


def test_prompts_need_no_output_and_limit_stops_before_a_bad_row(tmp_path):
    file = write(tmp_path / "x.json", '[{"instruction": "a"}, {"instruction": "b"}, {}]')
    assert [row.instruction for row in read_rows(file, COLUMNS, need_output=False, limit=2)] == ["a", "b"]


def test_a_prompt_may_say_how_long_its_answer_gets(tmp_path):
    rows = [{"instruction": "a", "max_new_tokens": 7}, {"instruction": "b"}]
    found = read_rows(write(tmp_path / "x.json", json.dumps(rows)), COLUMNS, need_output=False)
    assert [row.max_new_tokens for row in found] == [7, None]
    csv = write(tmp_path / "x.csv", "instruction,max_new_tokens\na,7\nb,\n")
    assert read_rows(csv, COLUMNS, need_output=False) == found


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "many"])
def test_an_answers_length_that_is_no_count_is_refused(tmp_path, wrong):
    file = write(tmp_path / "x.json", json.dumps([{"instruction": "a", "max_new_tokens": wrong}]))
    with pytest.raises(DataError, match="must be a whole number above 0"):
        read_rows(file, COLUMNS, need_output=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A data set saved by `datasets`, and the same as a folder of files."""
    from datasets import Dataset, DatasetDict

    folder = tmp_path_factory.mktemp("sets")
    Dataset.from_list(ROWS).save_to_disk(folder / "one")
    DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:1])}).save_to_disk(
        folder / "splits"
    )
    (folder / "files").mkdir()
    write(folder / "files" / "train.jsonl", "\n".join(map(json.dumps, ROWS)))
    write(folder / "files" / "test.jsonl", json.dumps(ROWS[0]))
    return folder


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [
        ("one", "train", 2),
        ("splits", "train", 2),
        ("splits", "test", 1),
        ("files", "train", 2),
        ("files", "test", 1),
    ],
)
def test_folders_that_datasets_reads_are_read_by_split(saved, tmp_path, monkeypatch, name, split, count):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    assert [row for _, row in read_records(saved / name, split=split)] == ROWS[:count]


@pytest.mark.parametrize(
    ("name", "subset", "split", "expected"),
    [
        ("splits", None, "tset", "Did you mean test"),
        ("files", None, "tset", "tset"),
        ("files", "nope", "train", "nope"),
    ],
)
def test_an_unknown_split_or_subset_is_named(saved, tmp_path, monkeypatch, name, subset, split, expected):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DataError) as caught:
        list(read_records(saved / name, subset=subset, split=split))
    assert expected in str(caught.value) and str(saved / name) in str(caught.value), str(caught.value)
