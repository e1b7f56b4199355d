"""From rows to training sequences that fit: what is too long is shortened, answers never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from llmsys_exp.workers.data.conversation import ASSISTANT, USER, Conversation, Document, Item, Turn
from llmsys_exp.workers.data.example import IGNORED, Example, Examples
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.data.render import Renderer
from llmsys_exp.workers.data.rows import Row
from llmsys_exp.workers.data.templates import use_template
from llmsys_exp.workers.data.tokens import Marked, Tokens

__all__ = ["IGNORED", "Counts", "Encoder", "Example", "encode", "encode_prompt", "encode_turns"]

MIN_PROMPT_TOKENS = 8
"""An answer that leaves less room than this for its prompt is left out: there would be nothing to answer."""
AT_ONCE = 2000


@dataclass
class Counts:
    """What happened to rows on their way."""

    cut: int = 0
    shortened: int = 0
    left_out: int = 0
    split: int = 0
    unanswered: int = 0
    pieces: int = 0

    def notes(self, max_length: int) -> list[str]:
        """Say it in words, where there is something to say."""
        said = {
            "cut": f"prompts were cut in the middle to keep within {max_length} tokens.",
            "shortened": f"conversations lost their oldest turns to keep within {max_length} tokens.",
            "left_out": f"rows were left out: their answers alone fill {max_length} tokens.",
            "split": "conversations became an example for each answer: the template rewrites earlier turns.",
            "unanswered": "rows end in a turn that nobody answers, which was left out.",
            "pieces": f"texts were cut into pieces of {max_length} tokens.",
        }
        return [f"{getattr(self, name)} {text}" for name, text in said.items() if getattr(self, name)]

    def to_dict(self) -> dict[str, int]:
        """Return the counts that are not zero."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name)}


class Encoder:
    """Turns items into examples of at most `max_length` tokens."""

    def __init__(
        self, tokenizer: Any, *, max_length: int, system: str | None = None, train_on_prompt: bool = False
    ) -> None:
        """Use the chat template that the tokenizer has."""
        self.counts = Counts()
        self._renderer, self._tokens = Renderer(tokenizer, system=system), Tokens(tokenizer)
        self._max_length, self._on_prompt = max_length, train_on_prompt

    def encode(
        self,
        items: Sequence[Item],
        *,
        keep_rows: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Examples:
        """Encode items in their order.

        Args:
            items: Conversations or documents.
            keep_rows: Keep the last question and answer of each, for a task score.
            on_progress: Called with items done and all items.

        Raises:
            DataError: when nothing fits.
        """
        parts: list[Marked] = []
        rows: list[Row] = []
        for first in range(0, len(items), AT_ONCE):
            some = items[first : first + AT_ONCE]
            for marked, row in self._documents(some) + self._conversations(some):
                parts.append(marked)
                rows.append(row)
            on_progress(first + len(some), len(items))
        if not parts:
            what = f"No row fits into {self._max_length} tokens"
            raise DataError(what, where="data.max_length", do="Raise data.max_length")
        return Examples.joined(parts, rows if keep_rows else None)

    def _conversations(self, items: Sequence[Item]) -> list[tuple[Marked, Row]]:
        conversations = [one for one in items if isinstance(one, Conversation)]
        rendered = self._renderer.render_all(conversations)
        self.counts.split += sum(len(each) > 1 for each in rendered)
        self.counts.unanswered += sum(one.unanswered for one in conversations)
        flat = [one for each in rendered for one in each]
        found: list[tuple[Marked, Row]] = []
        for rendering, marked in zip(flat, self._tokens.of_renderings(flat), strict=True):
            fitting = marked
            if len(marked[0]) > self._max_length:
                fitting = self._shortened(rendering.source, marked)
            if fitting is None:
                self.counts.left_out += 1
            else:
                found.append((self._labelled(fitting), _row_of(rendering.source)))
        return found

    def _documents(self, items: Sequence[Item]) -> list[tuple[Marked, Row]]:
        texts = [one.text for one in items if isinstance(one, Document)]
        found: list[tuple[Marked, Row]] = []
        for text, ids in zip(texts, self._tokens.of_documents(texts), strict=True):
            pieces = [ids[at : at + self._max_length] for at in range(0, len(ids), self._max_length)]
            self.counts.pieces += len(pieces) > 1
            # the first token of a piece is never predicted: one alone teaches nothing
            found += [(self._everything(one), Row(text)) for one in pieces if len(one) > 1]
        return found

    def _shortened(self, conversation: Conversation, marked: Marked) -> Marked | None:
        shorter = conversation.without_oldest()
        lost_turns = shorter is not None
        while shorter is not None and len(marked[0]) > self._max_length:
            # where the template rewrites history, `conversation` has one answer already
            marked = self._tokens.of_renderings(self._renderer.render(shorter)[-1:])[0]
            shorter = shorter.without_oldest()
        fitting = marked if len(marked[0]) <= self._max_length else self._cut_middle(*marked)
        self.counts.shortened += lost_turns and fitting is not None
        return fitting

    def _cut_middle(self, ids: Any, learnt: Any) -> Marked | None:
        """Take tokens out of the prompt: its head holds the system message, its end what opens the answer."""
        answer_start = int(np.flatnonzero(~learnt)[-1]) + 1
        room = self._max_length - (len(ids) - answer_start)
        if room < min(answer_start, MIN_PROMPT_TOKENS):
            return None
        self.counts.cut += 1
        head = room // 2
        kept = np.r_[0:head, answer_start - (room - head) : len(ids)]
        return ids[kept], learnt[kept]

    def _labelled(self, marked: Marked) -> Marked:
        return self._everything(marked[0]) if self._on_prompt else marked

    @staticmethod
    def _everything(ids: Any) -> Marked:
        learnt = np.ones(len(ids), dtype=np.bool_)
        learnt[0] = False
        return ids, learnt


def _row_of(conversation: Conversation) -> Row:
    asked = next((turn.content for turn in reversed(conversation.turns) if turn.role == USER), "")
    return Row(asked, output=conversation.answer)


def encode(tokenizer: Any, rows: Sequence[Row], *, max_length: int) -> tuple[Examples, list[str]]:
    """Encode alpaca rows with the tokenizer's template, and return notes on what was cut or left out."""
    use_template(tokenizer, None)
    encoder = Encoder(tokenizer, max_length=max_length)
    items = [Conversation((Turn(USER, row.request), Turn(ASSISTANT, row.output))) for row in rows]
    return encoder.encode(items, keep_rows=True), encoder.counts.notes(max_length)


def encode_prompt(tokenizer: Any, row: Row, *, system: str | None = None) -> tuple[int, ...]:
    """Tokenise a request up to where the model answers, as in training."""
    use_template(tokenizer, None)
    return encode_turns(tokenizer, [Turn(USER, row.request)], system=system)[1]


def encode_turns(
    tokenizer: Any, turns: Sequence[Turn], *, system: str | None = None, where: str = ""
) -> tuple[str, tuple[int, ...]]:
    """Render turns up to where the model answers, with the tokenizer's template: the text, and its tokens."""
    text = Renderer(tokenizer, system=system).prompt(turns, where=where)
    begin, ids = tokenizer.bos_token_id, Tokens(tokenizer).of(text)
    return text, tuple(ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids)
