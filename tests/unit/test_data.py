"""Rows, examples and their order, with a tokenizer of one token a word."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from llmsys_exp.workers.data.encode import IGNORED, Example, encode, encode_answer
from llmsys_exp.workers.data.order import Order
from llmsys_exp.workers.data.rows import DataError, Row, read_rows

COLUMNS = {"instruction": "instruction", "input": "input", "output": "output"}
END = "<end>"


class WordTokenizer:
    """Gives every new word the next number."""

    def __init__(self, chat_template: str | None = "words") -> None:
        self.chat_template = chat_template
        self.words = [END]
        self.eos_token_id = 0

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        self.words += [word for word in dict.fromkeys(text.split()) if word not in self.words]
        return {"input_ids": [self.words.index(word) for word in text.split()]}

    def apply_chat_template(self, turns, *, tokenize: bool, add_generation_prompt: bool = False) -> str:
        text = " ".join(f"<{turn['role']}> {turn['content']} {END}" for turn in turns)
        return f"{text} <assistant>" if add_generation_prompt else text

    def text(self, ids) -> str:
        return " ".join(self.words[one] for one in ids)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
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
        ("a.json", '{"instruction": "i", "output": "o"}', ["must hold a list", "not an object"]),
        ("a.json", "[1]", ["must be an object", "row 1"]),
        ("a.json", '[\n{"instruction": "i",\n]', ["Not valid JSON", "a.json:3"]),
        ("a.json", '{"instruction": "i"}\n{"instruction": "j"}', ["a.json:2", ".jsonl"]),
        ("a.jsonl", '{"instruction": "i", "output": "o"}\n{oops', ["Not valid JSON", "a.jsonl:2"]),
        ("a.jsonl", '\n\n{"instruction": "i"}', ["no 'output'", "line 3"]),
    ],
)
def test_bad_rows_are_named_by_file_and_place(tmp_path, name, text, expected):
    with pytest.raises(DataError) as caught:
        read_rows(write(tmp_path / name, text), COLUMNS)
    assert all(part in str(caught.value) for part in expected), str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_is_the_users_to_mend(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "none.json", COLUMNS)


def test_json_and_jsonl_give_the_same_rows_and_columns_can_be_renamed(tmp_path):
    rows = [{"q": "a", "context": "b", "a": "c"}, {"q": "d", "a": "e"}]
    columns = {"instruction": "q", "input": "context", "output": "a"}
    one = read_rows(write(tmp_path / "x.json", json.dumps(rows)), columns)
    two = read_rows(write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows))), columns)
    assert one == two == [Row("a", "b", "c"), Row("d", "", "e")]
    assert one[0].request == "a\n\nb"


def test_prompts_need_no_output_and_limit_stops_before_a_bad_row(tmp_path):
    file = write(tmp_path / "x.json", '[{"instruction": "a"}, {"instruction": "b"}, {}]')
    assert [row.instruction for row in read_rows(file, COLUMNS, need_output=False, limit=2)] == ["a", "b"]


def test_loss_is_on_the_answer_and_its_end_only():
    tokenizer = WordTokenizer()
    (example,), notes = encode(tokenizer, [Row("say it", "now", "yes sir")], max_length=50)
    assert tokenizer.text(example.ids) == f"<user> say it now {END} <assistant> yes sir {END}"
    labels = example.labels(train_on_prompt=False)
    assert labels == (IGNORED,) * 6 + example.answer_ids
    assert example.label_count(train_on_prompt=False) == 3
    assert example.labels(train_on_prompt=True) == example.ids
    assert example.label_count(train_on_prompt=True) == len(example.ids) - 1
    assert not notes


def test_a_tokenizer_without_chat_template_gets_plain_prompts():
    tokenizer = WordTokenizer(chat_template=None)
    (example,), _ = encode(tokenizer, [Row("say it", "", "yes")], max_length=50)
    assert tokenizer.text(example.ids) == f"### Instruction: say it ### Response: yes {END}"


def test_a_long_prompt_loses_its_middle_and_never_its_answer():
    tokenizer = WordTokenizer()
    row = Row(" ".join(f"w{n}" for n in range(40)), "", "the whole answer stays")
    (example,), notes = encode(tokenizer, [row], max_length=20)
    text = tokenizer.text(example.ids)
    assert len(example.ids) == 20
    assert text.startswith("<user> w0") and text.endswith(f"<assistant> the whole answer stays {END}")
    assert notes == ["1 prompts were cut in the middle to keep within 20 tokens."]


def test_rows_whose_answers_leave_no_room_are_left_out_and_reported():
    tokenizer = WordTokenizer()
    long = Row("a question of more than eight words goes here", "", " ".join(f"w{n}" for n in range(30)))
    examples, notes = encode(tokenizer, [long, Row("hi", "", "ho")], max_length=20)
    assert [one.row.output for one in examples] == ["ho"]
    assert notes == ["1 rows were left out: their answers alone fill 20 tokens."]
    with pytest.raises(DataError, match="No row fits into 20 tokens"):
        encode(tokenizer, [long], max_length=20)


def test_an_answer_ends_once_even_when_the_template_adds_more():
    tokenizer = WordTokenizer()
    assert encode_answer(tokenizer, Row("q", "", f"yes {END} junk"))[-1] == tokenizer.eos_token_id
    assert encode_answer(tokenizer, Row("q", "", "yes")).count(tokenizer.eos_token_id) == 1


def order(**changes) -> Order:
    return Order(**{"count": 10, "micro_batch": 2, "grad_accum": 3, "world_size": 2, "seed": 1} | changes)


def test_ranks_split_each_step_without_overlap():
    one = order(count=100)
    for step in range(5):
        shares = [list(chain(*one.micro_batches(step, rank=rank))) for rank in range(2)]
        assert all(len(batch) == 2 for rank in range(2) for batch in one.micro_batches(step, rank=rank))
        assert sorted(chain(*shares)) == sorted(one.step(step))
        assert not set(shares[0]) & set(shares[1])


def test_every_example_comes_once_an_epoch():
    one = order()
    stream = list(chain(*(one.step(step) for step in range(5))))
    for epoch in range(6):
        assert sorted(stream[epoch * 10 : epoch * 10 + 10]) == list(range(10))


def test_the_order_hangs_on_the_seed_alone():
    assert order().step(3) == order().step(3)
    assert order().step(3) == order(micro_batch=6, grad_accum=1).step(3)
    assert order().step(3) != order(seed=2).step(3)


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"),
    [(1.0, None, 9), (2.0, None, 17), (0.1, None, 1), (1.0, 4, 4), (0.01, 9, 1)],
)
def test_steps_follow_epochs_unless_max_steps_ends_the_run_first(epochs, max_steps, steps):
    assert order(count=100).steps(epochs=epochs, max_steps=max_steps) == steps


def test_an_example_knows_its_row():
    row = Row("a", "", "b")
    assert Example(row, (1,), (2, 0)).ids == (1, 2, 0)
