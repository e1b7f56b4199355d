"""Texts as token ids, many at once, with a mark on each token that is learnt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsys_exp.workers.data.render import Rendering

if TYPE_CHECKING:
    from numpy.typing import NDArray

Marked = tuple[Any, Any]
"""Ids and marks of one sequence, as arrays."""


class Tokens:
    """Tokenises with a mark on answers. What a chat template writes gets no further special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Use a tokenizer of transformers, a fast one if at hand."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None

    def of(self, text: str) -> list[int]:
        """Tokenise a rendered text."""
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def of_renderings(self, renderings: Sequence[Rendering]) -> list[Marked]:
        """Tokenise renderings; the tokens before an answer are those that generation would see."""
        if self._backend is None:
            return [self._in_pieces(one) for one in renderings]
        encodings = self._encode([one.text for one in renderings], special=False)
        return [self._marked(*pair) for pair in zip(renderings, encodings, strict=True)]

    def of_documents(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Tokenise plain texts, with the tokens that the tokenizer puts around them, and an end."""
        end = self._tokenizer.eos_token_id
        if self._backend is None:
            listed = [self._tokenizer(text)["input_ids"] for text in texts]
        else:
            listed = [one.ids for one in self._encode(texts, special=True)]
        ended = [ids if end is None or ids[-1:] == [end] else [*ids, end] for ids in listed]
        return [np.asarray(ids, dtype=np.int32) for ids in ended]

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[Any]:
        self._backend.no_truncation()
        self._backend.no_padding()
        with _all_cores():
            return self._backend.encode_batch(list(texts), add_special_tokens=special)

    def _marked(self, rendering: Rendering, encoding: Any) -> Marked:
        ids = np.asarray(encoding.ids, dtype=np.int32)
        learnt = np.zeros(len(ids), dtype=np.bool_)
        for start, end in rendering.answers:
            first = _token_at(encoding, start, end)
            last = _token_at(encoding, end, len(rendering.text)) if end < len(rendering.text) else len(ids)
            if first is None or encoding.token_to_chars(first)[0] < start:
                # a token reaches over the border: generation would see other tokens than this text has
                return self._in_pieces(rendering)
            learnt[first : len(ids) if last is None else last] = True
        return self._once_begun(ids, learnt)

    def _in_pieces(self, rendering: Rendering) -> Marked:
        ids: list[int] = []
        learnt: list[bool] = []
        done = 0
        for start, end in (*rendering.answers, (len(rendering.text),) * 2):
            for piece, is_learnt in ((rendering.text[done:start], False), (rendering.text[start:end], True)):
                found = self.of(piece) if piece else []
                ids += found
                learnt += [is_learnt] * len(found)
            done = end
        return self._once_begun(np.asarray(ids, dtype=np.int32), np.asarray(learnt, dtype=np.bool_))

    def _once_begun(self, ids: Any, learnt: Any) -> Marked:
        """Leave out the second of two tokens that begin a text, and the label of the first token."""
        begin = self._tokenizer.bos_token_id
        if begin is not None and len(ids) > 1 and ids[0] == ids[1] == begin:
            ids, learnt = ids[1:], learnt[1:]
        if learnt[:1].any():
            learnt[0] = False
        return ids, learnt


def _token_at(encoding: Any, start: int, end: int) -> int | None:
    """Find the first token of a stretch of characters; some belong to no token, as blanks may be dropped."""
    for character in range(start, end):
        token = encoding.char_to_token(character)
        if token is not None:
            return token
    return None


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let the tokenizer use all cores: one process a machine tokenises, and it does not fork meanwhile."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
