"""Layouts of a row, told apart and read, or refused with the place."""

from __future__ import annotations

import pytest

from llmsys_exp.config.schema import DataFormat
from llmsys_exp.workers.data.conversation import Conversation, Document, Turn
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.data.shapes import detect, parse

ASKED, ANSWERED = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
HUMAN, GPT = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}
QA = (("user", "q"), ("assistant", "a"))
SQA = (("system", "s"), *QA)


def turns(value, columns=None) -> tuple[tuple[str, str], ...]:
    columns = columns or {}
    item = parse(value, detect(value, columns, where="f, row 1"), columns, where="f, row 1")
    assert isinstance(item, Conversation)
    return tuple((turn.role, turn.content) for turn in item.turns)


@pytest.mark.parametrize(
    ("value", "columns", "expected"),
    [
        ({"instruction": "q", "output": "a"}, {}, QA),
        ({"instruction": "q", "input": "i", "output": "a"}, {}, (("user", "q\n\ni"), ("assistant", "a"))),
        ({"instruction": "q", "output": "a", "system": "s"}, {}, SQA),
        (
            {"instruction": "q", "output": "a", "history": [["x", "y"]]},
            {},
            (("user", "x"), ("assistant", "y"), *QA),
        ),
        ({"instruction": "q", "output": "a", "history": None, "system": None}, {}, QA),
        ({"ask": "q", "say": "a"}, {"instruction": "ask", "output": "say"}, QA),
        ({"conversations": [HUMAN, GPT]}, {}, QA),
        ({"conversations": [HUMAN, GPT], "system": "s"}, {}, SQA),
        ({"conversations": [{"from": "system", "value": "s"}, HUMAN, GPT]}, {}, SQA),
        ({"conversations": [ASKED, ANSWERED]}, {}, QA),
        ({"conversations": '[{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]'}, {}, QA),
        (
            {"talk": [{"who": "me", "text": "q"}, {"who": "it", "text": "a"}]},
            {"conversations": "talk", "from": "who", "value": "text", "human": "me", "gpt": "it"},
            QA,
        ),
        ({"messages": [ASKED, ANSWERED]}, {}, QA),
        ({"messages": [{"role": "developer", "content": "s"}, ASKED, ANSWERED]}, {}, SQA),
        ({"messages": [ASKED, ANSWERED, ASKED]}, {}, QA),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]}, {}, QA),
        ({"instruction": "q", "chosen": "a", "rejected": "b"}, {}, QA),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {}, QA),
        ({"prompt": [ASKED], "chosen": [ANSWERED], "rejected": [ANSWERED]}, {}, QA),
        ({"prompt": "q", "chosen": [ASKED, ANSWERED], "rejected": [ASKED]}, {}, QA),
        ({"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "b"}}, {}, QA),
    ],
)
def test_every_layout_is_recognised_and_read(value, columns, expected):
    assert turns(value, columns) == expected


def test_plain_text_is_a_document():
    assert detect({"text": "t"}, {}, where="") is DataFormat.text
    assert parse({"body": "t"}, DataFormat.text, {"text": "body"}, where="w") == Document("t", "w")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (
            {"instructions": "q", "output": "a"},
            None,
            ["no known layout", "data.columns.instruction=instructions"],
        ),
        ({}, None, ["no known layout"]),
        (["a"], None, ["must be an object"]),
        ({"instruction": "q", "output": "a"}, "messages", ["no 'messages'"]),
        ({"conversation": []}, "sharegpt", ["Did you mean the column 'conversation'"]),
        ({"messages": "hello"}, None, ["no JSON"]),
        ({"messages": {}}, None, ["must be a list of turns"]),
        ({"messages": [3]}, None, ["turn 1", "must be an object"]),
        ({"messages": []}, None, ["holds no answer"]),
        ({"messages": [ASKED]}, None, ["holds no answer"]),
        ({"messages": [ANSWERED]}, None, ["comes first"]),
        (
            {"messages": [ASKED, {"role": "asistant", "content": "a"}]},
            None,
            ["turn 2", "Did you mean 'assistant'"],
        ),
        ({"messages": [ASKED, {"role": "assistant", "content": ""}]}, None, ["turn 2", "'content' is empty"]),
        ({"messages": [ASKED, {"role": "assistant", "text": "a"}]}, None, ["turn 2", "no 'content'"]),
        (
            {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [1]}]},
            None,
            ["tool_calls"],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWERED]},
            None,
            ["more than text"],
        ),
        ({"instruction": "q", "output": "a", "history": [["x"]]}, None, ["'history' must hold pairs"]),
        ({"instruction": "q", "chosen": " ", "rejected": "b"}, None, ["'chosen' is empty"]),
        ({"chosen": "a", "rejected": "b"}, None, ["no 'instruction'"]),
        ({"text": ""}, None, ["'text' is empty"]),
    ],
)
def test_rows_of_another_shape_are_refused_with_their_place(value, kind, expected):
    with pytest.raises(DataError) as caught:
        found = DataFormat[kind] if kind else detect(value, {}, where="f.json, row 7")
        parse(value, found, {}, where="f.json, row 7")
    assert all(part in str(caught.value) for part in (*expected, "f.json, row 7")), str(caught.value)


def test_oldest_turns_go_first_and_the_system_message_stays():
    talk = Conversation(
        tuple(Turn(*one) for one in (*SQA, ("user", "q2"), ("tool", "t"), ("assistant", "a2")))
    )
    shorter = talk.without_oldest()
    assert [turn.content for turn in shorter.turns] == ["s", "q2", "t", "a2"]
    assert shorter.without_oldest() is None
    assert [one.turns[-1].content for one in talk.each_answer()] == ["a", "a2"]
