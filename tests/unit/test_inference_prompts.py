"""Prompt files of every kind as tokens, and the ones that are refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_text import BEGIN, byte_tokenizer

from llmsys_exp.errors import UserError
from llmsys_exp.workers.inference.prompts import check_lengths, encode_questions, read_questions

ALPACA_EVAL = {"dataset": "x", "instruction": "Hi?", "output": "Hello", "generator": "somebody"}


def write(path: Path, *rows: object) -> Path:
    text = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
    path.write_text(text, encoding="utf-8")
    return path


def texts(path: Path, *, template=None, system=None, tokenizer=None, **columns):
    tokenizer = tokenizer or byte_tokenizer()
    found = encode_questions(tokenizer, read_questions(path, columns), template=template, system=system)
    assert all(tokenizer.decode(one.ids) == one.text for one in found)
    return [one.text for one in found]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ALPACA_EVAL, "<|user|>Hi?<end>\n<|assistant|>"),
        ({"instruction": "Add", "input": "1+1"}, "<|user|>Add\n\n1+1<end>\n<|assistant|>"),
        ({"prompt": "Hi?"}, "<|user|>Hi?<end>\n<|assistant|>"),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
            "<|system|>s<end>\n<|user|>q<end>\n<|assistant|>",
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            "<|user|>q<end>\n<|assistant|>",
        ),
        ({"text": "Once upon"}, "Once upon"),
    ],
    ids=["alpaca-eval", "input", "prompt", "messages", "sharegpt", "text"],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_each_layout_is_asked_up_to_where_the_model_answers(tmp_path, row, expected, suffix):
    assert texts(write(tmp_path / f"p{suffix}", row)) == [expected]


def test_a_text_file_holds_a_prompt_a_line(tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("one\n\n  two \r\nthree", encoding="utf-8")
    assert texts(file, template="none") == ["one", "two", "three"]
    assert [one.where[-6:] for one in read_questions(file, {})] == ["line 1", "line 3", "line 4"]


def test_bare_prompts_are_the_instruction_and_nothing_else(tmp_path):
    file = write(tmp_path / "p.json", ALPACA_EVAL)
    assert texts(file, template="none") == ["Hi?"]
    begun = encode_questions(
        byte_tokenizer(begins=True), read_questions(file, {}), template="none", system=None
    )
    assert byte_tokenizer().decode(begun[0].ids) == f"{BEGIN}Hi?"
    talk = write(
        tmp_path / "t.jsonl",
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
    )
    with pytest.raises(UserError, match=r"cannot be asked without a chat template \(.*t.jsonl, line 1\)"):
        texts(talk, template="none")


def test_rows_bring_ids_references_and_limits(tmp_path):
    rows = {**ALPACA_EVAL, "id": "a", "max_new_tokens": 7}, {"prompt": "x", "id": 3}
    first, second = read_questions(write(tmp_path / "p.jsonl", *rows), {})
    assert (first.name, first.reference, first.max_new_tokens) == ("a", "Hello", 7)
    assert (second.name, second.reference, second.max_new_tokens) == ("3", "", None)


def test_parquet_and_csv_hold_the_same_prompts(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([ALPACA_EVAL]), tmp_path / "p.parquet")
    (tmp_path / "p.csv").write_text("instruction,output\nHi?,Hello\n", encoding="utf-8")
    found = [read_questions(tmp_path / name, {})[0] for name in ("p.parquet", "p.csv")]
    assert [(one.instruction, one.reference) for one in found] == [("Hi?", "Hello")] * 2


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("p.json", b"[]", r"The data set is empty \(.*p.json\)"),
        ("p.txt", b"\n\n", r"The data set is empty"),
        ("p.txt", b"fine\nna\xefve\n", r"not UTF-8 \(.*p.txt:2\)"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": "\xff"}', r"not UTF-8 \(.*p.jsonl:2\)"),
        (
            "p.jsonl",
            b'{"prompt": "a", "id": 1}\n{"prompt": "b"}\n{"prompt": "c", "id": "1"}',
            r"Two prompts have the id '1' \(.*line 3\)\.  The first is at .*line 1",
        ),
        ("p.jsonl", b'{"messages": [{"role": "assistant", "content": "a"}]}', r"does not end in a question"),
        ("p.jsonl", b'{"instructon": "a"}', r"If 'instructon' is the instruction"),
        ("p.jsonl", b'{"instruction": ""}', r"'instruction' is empty \(.*line 1\)"),
    ],
    ids=["no-row", "no-line", "bytes", "bytes-json", "ids", "no-question", "column", "blank"],
)
def test_what_cannot_be_asked_is_refused_by_file_and_line(tmp_path, name, data, expected):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=expected):
        read_questions(tmp_path / name, {})


def test_a_prompt_longer_than_the_context_is_named_with_its_length(tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("short\n" + "x" * 30 + "\n" + "y" * 40, encoding="utf-8")
    prompts = encode_questions(byte_tokenizer(), read_questions(file, {}), template="none", system=None)
    check_lengths(prompts, max_new_tokens=10, context_tokens=50)
    check_lengths(prompts, max_new_tokens=10, context_tokens=None)
    with pytest.raises(UserError, match=r"Prompt 2 has 30 tokens and may get 10 more, and 1 others .*line 2"):
        check_lengths(prompts, max_new_tokens=10, context_tokens=39)


@pytest.mark.parametrize(
    "row",
    [{"instruction": "a\ud800b"}, {"messages": [{"role": "user", "content": "\udc00"}]}],
    ids=["text", "chat"],
)
def test_half_a_character_is_refused_by_line(tmp_path, row):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"instruction": "whole \U0001f600"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"half of a character.*line 2"):
        read_questions(file, {})
