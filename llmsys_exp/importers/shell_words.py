"""Cuts the text of a shell script into simple commands of words; nothing is run or expanded."""

from __future__ import annotations

from dataclasses import dataclass, field

SEPARATORS = ("&&", "||", ";;", ";", "|", "&", "\n")
_REDIRECTIONS = ("&>>", "&>", ">>", ">&", ">|", "<<<", ">", "<&", "<")


@dataclass
class Part:
    """A piece of a word: its text, and whether quotes keep it whole or keep `$` from meaning anything."""

    text: str
    quoted: bool = False
    literal: bool = False


Word = list[Part]


@dataclass
class Command:
    """Words up to a separator, and that separator."""

    words: list[Word] = field(default_factory=list)
    line: int = 1
    ends: str = "\n"


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n").replace("\\\n", "  ")
        self.at, self.line = 0, 1
        self.word: Word | None = None
        self.command = Command()
        self.commands: list[Command] = []
        self.here: list[str] = []

    def run(self) -> list[Command]:
        while self.at < len(self.text):
            self._step()
        self._end_command("\n")
        return self.commands

    def _step(self) -> None:
        char = self.text[self.at]
        if char in " \t":
            self._end_word()
            self.at += 1
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
            self._here_document()
        elif (sign := self._redirection()) is not None:
            self._redirect(sign)
        elif (
            sign := next((one for one in SEPARATORS if self.text.startswith(one, self.at)), None)
        ) is not None:
            self.at += len(sign)
            self._end_command(sign)
        else:
            self._piece(char)

    def _redirection(self) -> str | None:
        return next((one for one in _REDIRECTIONS if self.text.startswith(one, self.at)), None)

    def _redirect(self, sign: str) -> None:
        """Drop a redirection with its target; a number before it names the stream."""
        if self.word is not None and "".join(part.text for part in self.word).isdigit():
            self.word = None
        self._end_word()
        self.at += len(sign)
        self._skip_word()

    def _skip_word(self) -> None:
        before = len(self.command.words)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|":
            if self.text[self.at] == "&" and self.word is not None:
                break
            self._piece(self.text[self.at])
        self.word = None
        del self.command.words[before:]

    def _here_document(self) -> None:
        self.at += 2 + self.text.startswith("<<-", self.at)
        start = self.at
        end = self.text.find("\n", start)
        end = len(self.text) if end < 0 else end
        tag = self.text[start:end].strip().split(" ")[0].strip("'\"")
        self.at = end
        close = self.text.find(f"\n{tag}", end)
        self.text = self.text[:end] + ("" if close < 0 else self.text[close + 1 + len(tag) :])

    def _piece(self, char: str) -> None:
        self.word = [] if self.word is None else self.word
        if char == "\\" and self.at + 1 < len(self.text):
            self.word.append(Part(self.text[self.at + 1], quoted=True, literal=True))
            self.at += 2
        elif char == "'":
            end = self._find("'", self.at + 1)
            self.word.append(Part(self.text[self.at + 1 : end], quoted=True, literal=True))
            self.at = end + 1
        elif char == '"':
            end = self._closing_quote(self.at + 1)
            self.word.append(Part(self.text[self.at + 1 : end].replace('\\"', '"'), quoted=True))
            self.at = end + 1
        elif char == "`" or self.text.startswith(("$(", "${"), self.at):
            end = self._find("`", self.at + 1) if char == "`" else self._closing(self.at + 1)
            self._add(self.text[self.at : end + 1])
            self.at = end + 1
        else:
            self._add(char)
            self.at += 1

    def _add(self, text: str) -> None:
        assert self.word is not None  # _piece has begun one
        if self.word and not self.word[-1].quoted:
            self.word[-1].text += text
        else:
            self.word.append(Part(text))

    def _find(self, char: str, start: int) -> int:
        end = self.text.find(char, start)
        return len(self.text) if end < 0 else end

    def _closing_quote(self, start: int) -> int:
        at = start
        while at < len(self.text) and self.text[at] != '"':
            at += 2 if self.text[at] == "\\" else 1
        return min(at, len(self.text))

    def _closing(self, start: int) -> int:
        """The end of `(...)` or `{...}` that begins at `start`."""
        opens, closes = self.text[start], {"(": ")", "{": "}"}[self.text[start]]
        depth = 0
        for at in range(start, len(self.text)):
            depth += (self.text[at] == opens) - (self.text[at] == closes)
            if depth == 0:
                return at
        return len(self.text)

    def _end_word(self) -> None:
        if self.word is not None:
            self.command.words.append(self.word)
        self.word = None

    def _end_command(self, sign: str) -> None:
        self._end_word()
        self.command.ends = sign
        if self.command.words:
            self.commands.append(self.command)
        self.command = Command(line=self.line)


def split_commands(text: str) -> list[Command]:
    """Return the simple commands of a script.

    >>> [[p.text for w in c.words for p in w] for c in split_commands("A=1; echo 'a b' > f && x -y")]
    [['A=1'], ['echo', 'a b'], ['x', '-y']]
    """
    return _Lexer(text).run()
