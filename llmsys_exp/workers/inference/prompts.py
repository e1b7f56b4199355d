"""Prompts of a file as token ids, refused by file and line where they cannot be answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import DataFormat
from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.conversation import USER, Turn
from llmsys_exp.workers.data.encode import encode_turns
from llmsys_exp.workers.data.records import DataError, read_lines, read_records
from llmsys_exp.workers.data.rows import cell, empty_data, need_object, need_text, row_limit
from llmsys_exp.workers.data.shapes import detect, parse_request
from llmsys_exp.workers.data.templates import use_template

BARE = "none"
"""`inference.template`: the instruction as it stands, without a chat around it."""
PROMPT = "prompt"
"""What many files call the column of a bare prompt."""


@dataclass(frozen=True)
class Question:
    """What a row of the prompt file asks."""

    where: str
    instruction: str
    input: str
    reference: str
    """The answer that the file gives; empty where it gives none."""
    turns: tuple[Turn, ...]
    """Empty: `instruction` is a text to go on with, no request."""
    name: str | None = None
    """The row's `id`."""
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class Prompt:
    """A question as the model gets it."""

    question: Question
    text: str
    ids: tuple[int, ...]


def read_questions(path: Path, columns: Mapping[str, str], *, limit: int | None = None) -> list[Question]:
    """Read a file of prompts: json, jsonl, csv, parquet in the layouts of training data, or txt, one a line.

    Raises:
        DataError: naming file and line of what cannot be read, and of a second prompt with the same id.
    """
    found: list[Question] = []
    seen: dict[str, str] = {}
    for one in _questions(path.absolute(), columns):
        if limit is not None and len(found) >= limit:
            break
        if one.name is not None and one.name in seen:
            raise DataError(
                f"Two prompts have the id {one.name!r}",
                where=one.where,
                why=f"The first is at {seen[one.name]}",
                do="Give every prompt an id of its own, or none",
            )
        if one.name is not None:
            seen[one.name] = one.where
        found.append(one)
    if not found:
        raise empty_data(path)
    return found


def encode_questions(
    tokenizer: Any, questions: Sequence[Question], *, template: str | None, system: str | None
) -> list[Prompt]:
    """Turn questions into tokens, under the chat template in use or bare."""
    if template == BARE:
        return [_bare(tokenizer, one, system=system) for one in questions]
    use_template(tokenizer, template)
    return [_in_chat(tokenizer, one, system=system) for one in questions]


def check_lengths(prompts: Sequence[Prompt], *, max_new_tokens: int, context_tokens: int | None) -> None:
    """Refuse prompts that leave no room for their answers.

    Raises:
        UserError: naming the first of them.
    """
    if context_tokens is None:
        return
    limits = [one.question.max_new_tokens or max_new_tokens for one in prompts]
    pairs = zip(prompts, limits, strict=True)
    long = [at for at, (one, limit) in enumerate(pairs) if len(one.ids) + limit > context_tokens]
    if not long:
        return
    first = prompts[long[0]]
    others = f", and {len(long) - 1} others are too long" if len(long) > 1 else ""
    raise UserError(
        f"Prompt {long[0] + 1} has {len(first.ids)} tokens and may get {limits[long[0]]} more{others}",
        where=first.question.where,
        why=f"The model's context holds {context_tokens}",
        do="Shorten the prompt or lower inference.sampling.max_new_tokens",
    )


def _questions(path: Path, columns: Mapping[str, str]) -> Iterator[Question]:
    if path.suffix.lower() == ".txt":
        for where, text in read_lines(path):
            yield Question(where, text, "", "", (Turn(USER, text),))
        return
    for where, value in read_records(path):
        yield _question(value, columns, where)


def _question(value: Any, columns: Mapping[str, str], where: str) -> Question:
    need_object(value, where=where)
    _need_unicode(value, where)
    columns = _with_prompt_column(value, columns)
    kind = detect(value, columns, where=where)
    name, limit = cell(value, "id", columns) or None, row_limit(value, columns, where=where)
    if kind is DataFormat.text:
        return Question(where, need_text(value, "text", columns, where=where), "", "", (), name, limit)
    turns, reference = parse_request(value, kind, columns, where=where)
    if kind is DataFormat.alpaca:
        asked, more = (cell(value, part, columns) for part in ("instruction", "input"))
    else:
        asked, more = turns[-1].content, ""
    return Question(where, asked, more, reference, tuple(turns), name, limit)


def _need_unicode(value: Any, where: str) -> None:
    """Refuse half a surrogate pair: JSON can spell one, and neither tokenizers nor files can hold it."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = ascii(value[error.start])
            raise DataError(
                f"The row holds {half}, half of a character", where=where, do="Write the whole character"
            ) from None
    elif isinstance(value, Mapping):
        for part in value.values():
            _need_unicode(part, where)
    elif isinstance(value, list):
        for part in value:
            _need_unicode(part, where)


def _with_prompt_column(value: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, str]:
    """Read a column `prompt` as the instruction, where no layout of training data claims it."""
    known = ("instruction", "messages", "conversations", "text", "chosen")
    if PROMPT not in value or any(columns.get(name, name) in value for name in known):
        return columns
    return {**columns, ("messages" if isinstance(value[PROMPT], list) else "instruction"): PROMPT}


def _bare(tokenizer: Any, question: Question, *, system: str | None) -> Prompt:
    if len(question.turns) > 1 or system:
        raise DataError(
            "A conversation, or a system message, cannot be asked without a chat template",
            where=question.where,
            do="Leave inference.template out, or name a template",
        )
    text = question.turns[0].content if question.turns else question.instruction
    ids = tokenizer(text)["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        del ids[-1]  # some tokenizers end every text, and a model that has ended says nothing more
    return Prompt(question, text, tuple(ids))


def _in_chat(tokenizer: Any, question: Question, *, system: str | None) -> Prompt:
    if not question.turns:
        return _bare(tokenizer, question, system=None)
    text, ids = encode_turns(tokenizer, question.turns, system=system, where=question.where)
    return Prompt(question, text, ids)
