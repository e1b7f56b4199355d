"""Conversations as text, with the stretches of it that are learnt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmsys_exp.workers.data.conversation import ASSISTANT, SYSTEM, USER, Conversation, Turn
from llmsys_exp.workers.data.records import DataError

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Templates that say themselves which part the assistant writes."""


@dataclass(frozen=True)
class Rendering:
    """The text of a conversation; `answers` are stretches of characters, each with its end-of-turn token."""

    text: str
    answers: tuple[tuple[int, int], ...]
    source: Conversation

    @property
    def prompt(self) -> str:
        """All up to where the last answer begins."""
        return self.text[: self.answers[-1][0]]


class Renderer:
    """Renders with the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, *, system: str | None = None) -> None:
        """Use the tokenizer's template; `system` opens conversations that bring no system message."""
        self._tokenizer, self._system = tokenizer, system
        self._marks = bool(MARKED.search(tokenizer.get_chat_template()))
        self._known: dict[tuple[Sequence[Turn], bool], str] = {}

    def prompt(self, turns: Sequence[Turn], *, where: str = "") -> str:
        """Render turns up to the point where the model answers."""
        return self._render(turns, where, asks=True)

    def render_all(self, conversations: Sequence[Conversation]) -> list[list[Rendering]]:
        """Render many conversations; those of one answer, which are most, in a few calls."""
        short = [one for one in conversations if not self._marks and one.answered == [len(one.turns) - 1]]
        try:
            wholes = self._render_many([one.turns for one in short], asks=False)
            prompts = self._render_many([one.turns[:-1] for one in short], asks=True)
        except Exception:  # one after the other the row is named
            short = wholes = prompts = []
        for one, whole, prompt in zip(short, wholes, prompts, strict=True):
            self._known[one.turns, False], self._known[one.turns[:-1], True] = whole, prompt
        try:
            return [self.render(one) for one in conversations]
        finally:
            self._known.clear()

    def render(self, conversation: Conversation) -> list[Rendering]:
        """Render a conversation: as one text, or one for each answer where the template rewrites history."""
        if self._marks:
            return [self._marked(conversation)]
        whole = self._render(conversation.turns, conversation.where)
        answers = self._answers(conversation, whole)
        if answers is not None:
            return [self._ended(whole, answers, conversation)]
        if len(conversation.answered) > 1:
            return [one for each in conversation.each_answer() for one in self.render(each)]
        # the template writes an answer otherwise than it asks for one: follow the question as it is asked
        prompt = self.prompt(conversation.turns[:-1], where=conversation.where)
        text = prompt + conversation.answer
        return [self._ended(text, [(len(prompt), len(text))], conversation)]

    def _answers(self, conversation: Conversation, whole: str) -> list[tuple[int, int]] | None:
        """Find the answers: what is added when the text grows by them; None where it does not just grow."""
        found = []
        for at in conversation.answered:
            before = self.prompt(conversation.turns[:at], where=conversation.where)
            is_last = at + 1 == len(conversation.turns)
            after = whole if is_last else self._render(conversation.turns[: at + 1], conversation.where)
            if not (after.startswith(before) and whole.startswith(after)):
                return None
            found.append((len(before), len(after)))
        return found

    def _marked(self, conversation: Conversation) -> Rendering:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, stretches = render_jinja_template(
                [self._messages(conversation.turns)],
                chat_template=self._tokenizer.get_chat_template(),
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
        except Exception as error:
            raise _refused(error, conversation.where) from error
        answers = list(stretches[0])
        if not answers:
            what = "The chat template marks no answer of this conversation"
            raise DataError(what, where=conversation.where, do="Choose another data.template")
        return self._ended(texts[0], answers[-1:] if conversation.only_last else answers, conversation)

    def _ended(self, text: str, answers: Sequence[tuple[int, int]], conversation: Conversation) -> Rendering:
        """Let every answer end in the token that ends a turn, and the text end there too."""
        found = [self._to_end(text, start, end) for start, end in answers]
        start, end = found[-1]
        text, eos = text[:end], self._tokenizer.eos_token
        if eos and eos in text[start:]:
            # what follows the end of an answer is never generated
            text = text[: text.index(eos, start) + len(eos)]
        elif eos and not text.endswith(self.enders):
            text += eos
        return Rendering(text, (*found[:-1], (start, len(text))), conversation)

    def _to_end(self, text: str, start: int, end: int) -> tuple[int, int]:
        kept = text[start:end].rstrip()
        if kept.endswith(self.enders):
            return start, start + len(kept)
        follows = text[end:]
        token = next((one for one in self.enders if follows.startswith(one)), "")
        return start, end + len(token)

    @cached_property
    def enders(self) -> tuple[str, ...]:
        """Tokens that may end a turn: every special one but the one that begins a text."""
        tokens = {*self._tokenizer.all_special_tokens, *self._tokenizer.get_added_vocab()}
        begin, end = self._tokenizer.bos_token, self._tokenizer.eos_token
        return tuple(sorted(one for one in tokens if one.strip() and (one != begin or one == end)))

    def _render(self, turns: Sequence[Turn], where: str, *, asks: bool = False) -> str:
        known = self._known.get((tuple(turns), asks))
        if known is not None:
            return known
        try:
            return self._render_many([turns], asks=asks)[0]
        except Exception as error:
            raise _refused(error, where) from error

    def _render_many(self, many: Sequence[Sequence[Turn]], *, asks: bool) -> list[str]:
        messages = [self._messages(turns) for turns in many]
        if not messages:
            return []
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        listed = [{"role": turn.role, "content": turn.content} for turn in turns]
        if self._system and turns[0].role != SYSTEM:
            listed.insert(0, {"role": SYSTEM, "content": self._system})
        return listed


def end_of_turn_id(tokenizer: Any) -> int | None:
    """Return the token that ends an answer under the tokenizer's chat template, which need not be its eos."""
    if not tokenizer.chat_template:
        return None
    renderer = Renderer(tokenizer)
    try:
        text = renderer.render(Conversation((Turn(USER, "a"), Turn(ASSISTANT, "b"))))[-1].text
    except DataError:  # a template for other conversations than this one
        return None
    ends = [token for token in renderer.enders if text.endswith(token)]
    return tokenizer.convert_tokens_to_ids(max(ends, key=len)) if ends else None


def _refused(error: Exception, where: str) -> DataError:
    """A template is a program of somebody else's; whatever it raises is about this row."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(
        f"The chat template refuses the conversation: {reason}",
        where=where or "data.template",
        do="Mend the row, or choose another data.template",
    )
