"""From rows to token ids: chat template, labels on answers only, padding, and the order of examples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.workers.rows import DataError, Row

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


def collate(examples: Sequence[Example], *, pad_id: int, train_on_prompt: bool = False) -> dict[str, Any]:
    """Pad on the right to the longest example and return input ids, attention mask and labels."""
    import torch

    width = max(len(one.ids) for one in examples)

    def padded(values: Sequence[int], fill: int) -> list[int]:
        return [*values, *[fill] * (width - len(values))]

    columns = {
        "input_ids": [padded(one.ids, pad_id) for one in examples],
        "attention_mask": [padded([1] * len(one.ids), 0) for one in examples],
        "labels": [padded(one.labels(train_on_prompt=train_on_prompt), IGNORED) for one in examples],
    }
    return {name: torch.tensor(values) for name, values in columns.items()}


@dataclass(frozen=True)
class Order:
    """Which examples make up which step, the same on every rank and known for any step at once.

    Epoch after epoch is shuffled and laid end to end; step s takes the s-th slice of a global batch, and
    every rank its part of that slice. A batch may reach into the next epoch; no example is dropped.
    """

    count: int
    micro_batch: int
    grad_accum: int
    world_size: int
    seed: int

    @property
    def global_batch(self) -> int:
        """Examples per optimizer step over all ranks."""
        return self.micro_batch * self.grad_accum * self.world_size

    def steps(self, *, epochs: float, max_steps: int | None) -> int:
        """Optimizer steps of the run, at least one."""
        wanted = max(1, -int(-(epochs * self.count) // self.global_batch))
        return wanted if max_steps is None else min(wanted, max_steps)

    def step(self, number: int) -> list[int]:
        """Examples of one optimizer step over all ranks."""
        first = number * self.global_batch
        epochs: dict[int, list[int]] = {}
        picked = []
        for position in range(first, first + self.global_batch):
            epoch, place = divmod(position, self.count)
            if epoch not in epochs:
                epochs[epoch] = self._shuffled(epoch)
            picked.append(epochs[epoch][place])
        return picked

    def micro_batches(self, number: int, *, rank: int) -> list[list[int]]:
        """Examples of one rank in one optimizer step, by micro-batch."""
        mine = self.step(number)[rank :: self.world_size]
        return [mine[at : at + self.micro_batch] for at in range(0, len(mine), self.micro_batch)]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self.count))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order
