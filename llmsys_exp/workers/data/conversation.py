"""What a row says once its layout is read: turns of a conversation, or a text."""

from __future__ import annotations

from dataclasses import dataclass, replace

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"


@dataclass(frozen=True)
class Turn:
    """What one side says."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """Turns that end in an answer. Every answer is learnt, or the last one alone."""

    turns: tuple[Turn, ...]
    where: str = ""
    only_last: bool = False
    unanswered: bool = False
    """The row went on after the last answer; that part was left out."""

    @property
    def answer(self) -> str:
        """The last answer."""
        return self.turns[-1].content

    @property
    def answered(self) -> list[int]:
        """Numbers of the turns that are learnt."""
        if self.only_last:
            return [len(self.turns) - 1]
        return [number for number, turn in enumerate(self.turns) if turn.role == ASSISTANT]

    def each_answer(self) -> list[Conversation]:
        """Return one conversation for each answer, with all that came before it."""
        return [replace(self, turns=self.turns[: at + 1], only_last=True) for at in self.answered]

    def without_oldest(self) -> Conversation | None:
        """Leave out the oldest question and its answers, not the system message; None where one is left."""
        asked = [number for number, turn in enumerate(self.turns) if turn.role == USER]
        if len(asked) < 2:
            return None
        system = self.turns[:1] if self.turns[0].role == SYSTEM else ()
        return replace(self, turns=system + self.turns[asked[1] :])


@dataclass(frozen=True)
class Document:
    """A text of which every token is learnt."""

    text: str
    where: str = ""


Item = Conversation | Document
