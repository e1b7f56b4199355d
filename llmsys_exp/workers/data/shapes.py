"""Layouts of a row: alpaca, sharegpt, chat messages, plain text, preference pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmsys_exp.config.schema import DataFormat
from llmsys_exp.errors import closest
from llmsys_exp.workers.data.conversation import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    Conversation,
    Document,
    Item,
    Turn,
)
from llmsys_exp.workers.data.records import DataError, kind_of
from llmsys_exp.workers.data.rows import cell, need_column, need_object, need_text, parse_row

Columns = Mapping[str, str]

MARKS = {
    DataFormat.preference: ("chosen", "rejected"),
    DataFormat.messages: ("messages",),
    DataFormat.sharegpt: ("conversations",),
    DataFormat.alpaca: ("instruction",),
    DataFormat.text: ("text",),
}
"""Columns that tell a layout; the first layout whose columns a row has is taken."""

SYSTEM_SPEAKER = "system_speaker"
"""In `data.columns`, what the file calls the speaker `system`: the column of that name is another thing."""

ROLES = {SYSTEM: SYSTEM, USER: USER, ASSISTANT: ASSISTANT, TOOL: TOOL, "developer": SYSTEM}
SPEAKERS = {
    "human": USER,
    "gpt": ASSISTANT,
    "system": SYSTEM,
    "observation": TOOL,
    "function_call": ASSISTANT,
    "user": USER,
    "assistant": ASSISTANT,
}
"""Roles by the name that sharegpt files give the speaker."""


def detect(value: Any, columns: Columns, *, where: str) -> DataFormat:
    """Return the layout of a row.

    Raises:
        DataError: when it has the columns of none.
    """
    need_object(value, where=where)
    for kind, marks in MARKS.items():
        if all(columns.get(name, name) in value for name in marks):
            return kind
    known = "; ".join(f"{kind.name}: {', '.join(marks)}" for kind, marks in MARKS.items())
    names = [name for marks in MARKS.values() for name in marks]
    pairs = ((near, str(name)) for name in value if (near := closest(str(name), names)))
    meant = "".join(f"If {name!r} is the {near}, add data.columns.{near}={name}.  " for near, name in pairs)
    raise DataError(
        f"The row has the columns of no known layout: {', '.join(map(str, value)) or 'it is empty'}",
        where=where,
        do=f"{meant}Name the layout with data.format and its columns with data.columns ({known})",
    )


def parse(value: Any, kind: DataFormat, columns: Columns, *, where: str) -> Item:
    """Read one row in a layout.

    Raises:
        DataError: naming the row and what it lacks.
    """
    need_object(value, where=where, hint=f"data.format is {kind.name}")
    if kind is DataFormat.text:
        return Document(need_text(value, "text", columns, where=where), where)
    return _conversation(PARSERS[kind](value, columns, where), where)


def parse_request(value: Any, kind: DataFormat, columns: Columns, *, where: str) -> tuple[list[Turn], str]:
    """Read what a row asks, up to its last question, and the answer that it gives, which may be empty.

    Raises:
        DataError: naming the row and what it lacks.
    """
    if kind is DataFormat.preference:
        return _asked(value, columns, where), ""
    if kind is DataFormat.alpaca:
        row = parse_row(value, columns, where=where, need_output=False)
        return [*_alpaca_start(value, columns, where), Turn(USER, row.request)], row.output
    turns = PARSERS[kind](value, columns, where)
    answer = turns.pop().content if turns and turns[-1].role == ASSISTANT else ""
    if not turns or turns[-1].role not in (USER, TOOL):
        raise DataError("The row's conversation does not end in a question", where=where)
    return turns, answer


def _conversation(turns: Sequence[Turn], where: str) -> Conversation:
    last = max((number for number, turn in enumerate(turns) if turn.role == ASSISTANT), default=-1)
    if last < 0:
        raise DataError("The row holds no answer", where=where, why="There would be nothing to learn")
    if last == 0:
        raise DataError("The row's answer answers nothing: it comes first", where=where)
    return Conversation(tuple(turns[: last + 1]), where, unanswered=last + 1 < len(turns))


def _alpaca(value: Any, columns: Columns, where: str) -> list[Turn]:
    row = parse_row(value, columns, where=where, need_output=True)
    turns = [*_alpaca_start(value, columns, where), Turn(USER, row.request), Turn(ASSISTANT, row.output)]
    return turns


def _alpaca_start(value: Any, columns: Columns, where: str) -> list[Turn]:
    """System message and earlier rounds, where a row has them."""
    turns = _system_turn(value, columns)
    has_history = bool(value.get(columns.get("history", "history")))
    for pair in _list(value, "history", columns, where) if has_history else ():
        if not isinstance(pair, (list, tuple)) or list(map(type, pair)) != [str, str]:
            raise DataError("'history' must hold pairs of question and answer", where=where)
        turns += [Turn(USER, pair[0]), Turn(ASSISTANT, pair[1])]
    return turns


def _sharegpt(value: Any, columns: Columns, where: str) -> list[Turn]:
    listed = _list(value, "conversations", columns, where)
    return _system_turn(value, columns) + _turns(listed, columns, where)


def _messages(value: Any, columns: Columns, where: str) -> list[Turn]:
    return _system_turn(value, columns) + _turns(_list(value, "messages", columns, where), columns, where)


def _preference(value: Any, columns: Columns, where: str) -> list[Turn]:
    chosen = need_column(value, "chosen", columns, where=where)
    if isinstance(chosen, list):
        # some files repeat the question in each of the two, some do not
        turns = _turns(chosen, columns, where)
        return turns if any(turn.role == USER for turn in turns) else _asked(value, columns, where) + turns
    if isinstance(chosen, dict):
        return _asked(value, columns, where) + _turns([chosen], columns, where)
    need_text(value, "chosen", columns, where=where)
    return [*_asked(value, columns, where), Turn(ASSISTANT, chosen)]


def _asked(value: Any, columns: Columns, where: str) -> list[Turn]:
    """What a preference pair answers."""
    for name in ("conversations", "messages"):
        if columns.get(name, name) in value:
            return _system_turn(value, columns) + _turns(_list(value, name, columns, where), columns, where)
    name = "prompt" if columns.get("prompt", "prompt") in value else "instruction"
    if isinstance(value.get(columns.get(name, name)), list):
        return _system_turn(value, columns) + _turns(_list(value, name, columns, where), columns, where)
    question = need_text(value, name, columns, where=where)
    more = cell(value, "input", columns)
    start = _alpaca_start(value, columns, where)
    return [*start, Turn(USER, f"{question}\n\n{more}" if more else question)]


def _system_turn(value: Any, columns: Columns) -> list[Turn]:
    text = cell(value, "system", columns)
    return [Turn(SYSTEM, text)] if text else []


def _turns(listed: Iterable[Any], columns: Columns, where: str) -> list[Turn]:
    roles = {_speaker(name, columns): role for name, role in {**SPEAKERS, **ROLES}.items()}
    turns: list[Turn] = []
    for number, one in enumerate(listed, start=1):
        place = f"{where}, turn {number}"
        if not isinstance(one, dict):
            raise DataError(f"A turn must be an object, not {kind_of(one)}", where=place)
        names = ("from", "value") if columns.get("from", "from") in one else ("role", "content")
        speaker = str(need_column(one, names[0], columns, where=place))
        if speaker not in roles:
            near = closest(speaker, roles)
            hint = f"Did you mean {near!r}?  " if near else ""
            raise DataError(
                f"Nobody is called {speaker!r}", where=place, do=f"{hint}Known: {', '.join(roles)}"
            )
        turns.append(Turn(roles[speaker], _content(one, names[1], columns, place)))
    return turns


def _speaker(name: str, columns: Columns) -> str:
    return columns.get(SYSTEM_SPEAKER if name == SYSTEM else name, name)


def _content(turn: Mapping[str, Any], name: str, columns: Columns, where: str) -> str:
    found = need_column(turn, name, columns, where=where)
    if isinstance(found, list):
        if all(isinstance(part, dict) and part.get("type") == "text" for part in found):
            return "".join(str(part.get("text", "")) for part in found)
        raise DataError("A turn holds more than text", where=where, why="Images and sound are not supported")
    if turn.get("tool_calls"):
        raise DataError("A turn holds tool_calls", where=where, do="Write the call as text in its content")
    return need_text(turn, name, columns, where=where)


def _list(value: Any, name: str, columns: Columns, where: str) -> list[Any]:
    found = need_column(value, name, columns, where=where)
    if isinstance(found, str):  # csv has no lists
        try:
            found = json.loads(found)
        except json.JSONDecodeError as error:
            raise DataError(f"{name!r} is a text that is no JSON", where=where, why=error.msg) from None
    if not isinstance(found, list):
        raise DataError(f"{name!r} must be a list of turns, not {kind_of(found)}", where=where)
    return found


PARSERS = {
    DataFormat.alpaca: _alpaca,
    DataFormat.sharegpt: _sharegpt,
    DataFormat.messages: _messages,
    DataFormat.preference: _preference,
}
