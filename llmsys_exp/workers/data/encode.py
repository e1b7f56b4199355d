"""From rows to token ids: chat template, and labels on answers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.data.rows import DataError, Row

IGNORED = -100
PLAIN_PROMPT = "### Instruction:\n{request}\n\n### Response:\n"
MIN_PROMPT_TOKENS = 8
"""An answer that leaves less room than this for its prompt is left out: there would be nothing to answer."""


@dataclass(frozen=True)
class Example:
    """One training sequence: prompt and answer, the answer ending in the end-of-turn token."""

    row: Row
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    was_cut: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens."""
        return self.prompt_ids + self.answer_ids

    def labels(self, *, train_on_prompt: bool) -> tuple[int, ...]:
        """Token ids where there is something to learn, else `IGNORED`."""
        return self.ids if train_on_prompt else (IGNORED,) * len(self.prompt_ids) + self.answer_ids

    def label_count(self, *, train_on_prompt: bool) -> int:
        """Tokens the loss is averaged over. The first token of a sequence is never predicted."""
        return len(self.ids) - 1 if train_on_prompt else len(self.answer_ids)


def prompt_text(tokenizer: Any, row: Row) -> str:
    """Render a request up to the point where the model answers."""
    if not tokenizer.chat_template:
        return PLAIN_PROMPT.format(request=row.request)
    turns = [{"role": "user", "content": row.request}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def encode_prompt(tokenizer: Any, row: Row) -> tuple[int, ...]:
    """Tokenise a request. Chat templates write their own special tokens, plain text needs the tokenizer's."""
    text = prompt_text(tokenizer, row)
    return tuple(tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"])


def encode_answer(tokenizer: Any, row: Row) -> tuple[int, ...]:
    """Tokenise an answer up to and with the token that ends a turn."""
    ids = tokenizer(_answer_text(tokenizer, row), add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    kept = ids[: ids.index(end)] if end in ids else ids
    return (*kept, end) if end is not None else tuple(kept)


def _answer_text(tokenizer: Any, row: Row) -> str:
    if tokenizer.chat_template:
        prompt = prompt_text(tokenizer, row)
        turns = [{"role": "user", "content": row.request}, {"role": "assistant", "content": row.output}]
        whole = tokenizer.apply_chat_template(turns, tokenize=False)
        # some templates rewrite earlier turns, and then the answer cannot be told apart from the prompt
        if whole.startswith(prompt):
            return whole[len(prompt) :]
    return row.output


def encode(tokenizer: Any, rows: Sequence[Row], *, max_length: int) -> tuple[list[Example], list[str]]:
    """Return the examples, and notes for the user on rows that were cut or left out.

    A prompt that is too long loses tokens from its middle: its head holds the system message, its end the
    words that open the answer. An answer is never cut.
    """
    examples: list[Example] = []
    for row in rows:
        prompt, answer = encode_prompt(tokenizer, row), encode_answer(tokenizer, row)
        room = max_length - len(answer)
        if room >= min(len(prompt), MIN_PROMPT_TOKENS):
            examples.append(Example(row, _cut_middle(prompt, room), answer, was_cut=len(prompt) > room))
    if not examples:
        raise DataError(
            f"No row fits into {max_length} tokens", where="data.max_length", do="Raise data.max_length"
        )
    return examples, _notes(examples, left_out=len(rows) - len(examples), max_length=max_length)


def _cut_middle(ids: tuple[int, ...], room: int) -> tuple[int, ...]:
    if len(ids) <= room:
        return ids
    head = room // 2
    return ids[:head] + ids[len(ids) - (room - head) :]


def _notes(examples: Sequence[Example], *, left_out: int, max_length: int) -> list[str]:
    notes = []
    cut = sum(one.was_cut for one in examples)
    if cut:
        notes.append(f"{cut} prompts were cut in the middle to keep within {max_length} tokens.")
    if left_out:
        notes.append(f"{left_out} rows were left out: their answers alone fill {max_length} tokens.")
    return notes
