"""Follows a shell script as far as that needs no running: variables, defaults, conditions, and its commands.

What only running could tell (`$(...)`, loops, files that are sourced) stays unknown, and is said to be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmsys_exp.importers.shell_condition import UNKNOWN, condition
from llmsys_exp.importers.shell_words import Command, Part, Word, split_commands

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_]\w*|[0-9@*#?$!-]))")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:(:?[-=+])(.*))?", re.DOTALL)
_KEYWORDS = (
    "if",
    "then",
    "elif",
    "else",
    "fi",
    "for",
    "while",
    "until",
    "select",
    "do",
    "done",
    "case",
    "esac",
)
_DECLARE = ("export", "local", "readonly", "declare", "typeset")
MOST_WORDS = 10_000
LONGEST_VALUE = 100_000
"""Characters of a variable; lines that double one could fill any memory."""


@dataclass
class Found:
    """A command that would be run, with its variables put in."""

    words: list[str]
    env: dict[str, str]
    sure: bool
    """Whether it is known to be run, and once: False in loops, functions and undecided branches."""


@dataclass
class _Branch:
    """One level of `if`, loop or function: True runs, False does not, None nobody knows."""

    state: bool | None
    taken: bool | None = None
    kind: str = "if"
    asks: bool = False
    """Whether what stands here is the condition of the `if`."""


@dataclass
class Shell:
    """The state of a script that is read."""

    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    commands: list[Found] = field(default_factory=list)
    _stack: list[_Branch] = field(default_factory=list)
    _status: bool | None = True
    _before: str = "\n"

    def read(self, text: str) -> list[Found]:
        """Return the commands of a script in the order in which they stand."""
        for command in split_commands(text):
            self._command(command)
            self._before = command.ends
        return self.commands

    def _command(self, command: Command) -> None:
        words = command.words
        first = _plain(words[0])
        while first in _KEYWORDS or first in ("{", "}"):
            if not self._keyword(first, words):
                return
            words = words[1:]
            if not words:
                return
            first = _plain(words[0])
        if first.endswith("()") or first == "function":
            self._stack.append(_Branch(None, kind="function"))
            return
        self._simple(words)

    def _keyword(self, name: str, words: list[Word]) -> bool:
        """Move in or out of a branch; return whether a command follows the keyword."""
        if name in ("if", "while", "until"):
            self._stack.append(_Branch(None, kind=name, asks=name == "if"))
            return True
        if name in ("for", "select", "case"):
            if len(words) > 1 and name != "case":
                self.variables[_plain(words[1])] = UNKNOWN
            self._stack.append(_Branch(None, kind=name))
            return False
        if name == "{":
            return len(words) > 1
        if name in ("fi", "done", "esac", "}"):
            if self._stack:
                self._stack.pop()
            return False
        return self._turn(name, has_more=len(words) > 1)

    def _turn(self, name: str, *, has_more: bool) -> bool:
        """`then`, `elif`, `else` and `do`."""
        if not self._stack or self._stack[-1].kind != "if":
            return has_more
        branch = self._stack[-1]
        branch.asks = name == "elif"
        if name == "then":
            branch.state = self._status if branch.taken is not True else False
            branch.taken = _either(branch.taken, branch.state)
        elif name == "else":
            branch.state = None if branch.taken is None else not branch.taken
        elif name == "elif":
            branch.state = None
        return has_more

    def _state(self) -> bool | None:
        """Whether a command here is run."""
        # the innermost `if` is not decided while its condition is read
        states = [one.state for one in self._stack if not (one.asks and one is self._stack[-1])]
        if self._before == "&&":
            states.append(self._status)
        elif self._before == "||":
            states.append(None if self._status is None else not self._status)
        if False in states:
            return False
        return None if None in states else True

    def _simple(self, words: list[Word]) -> None:
        state = self._state()
        if state is False:
            return
        env: dict[str, str] = {}
        while words and _ASSIGNMENT.match(_head(words[0])):
            name, value = self._assignment(words[0])
            env[name] = value
            words = words[1:]
        if not words:
            for name, value in env.items():
                self.variables[name] = value if state else UNKNOWN
            return
        expanded = self.expand(words)
        if not expanded:
            return
        self._run(expanded, env, sure=state is True)

    def _run(self, words: list[str], env: dict[str, str], *, sure: bool) -> None:
        name = words[0]
        if name in ("[", "[[", "test"):
            self._status = condition([word for word in words[1:] if word not in ("]", "]]")])
            return
        if name in _DECLARE:
            for word in words[1:]:
                key, equals, value = word.partition("=")
                if equals:
                    self.variables[key] = value if sure else UNKNOWN
        elif name == "shift":
            self.arguments = self.arguments[int(words[1]) if len(words) > 1 and words[1].isdigit() else 1 :]
        elif name == "eval":
            words = " ".join(words[1:]).split()
        self._status = True
        if words and len(self.commands) < MOST_WORDS:
            exported = {
                **{key: self.variables[key] for key in ("CUDA_VISIBLE_DEVICES",) if key in self.variables},
                **env,
            }
            self.commands.append(Found(words[:MOST_WORDS], exported, sure))

    def _assignment(self, word: Word) -> tuple[str, str]:
        name, _, rest = _head(word).partition("=")
        parts = [Part(rest, word[0].quoted, word[0].literal), *word[1:]]
        value = "".join(part.text if part.literal else self._value(part.text) for part in parts)
        if rest.startswith("(") or name.endswith("+"):
            value = UNKNOWN  # arrays and additions are not followed
        return name.rstrip("+"), value

    def expand(self, words: Sequence[Word]) -> list[str]:
        """Return words with their variables put in; what is not quoted falls apart at blanks."""
        return [text for word in words for text in self._word(word)]

    def _word(self, word: Word) -> list[str]:
        done = [""]
        is_quoted = any(part.quoted for part in word)
        for part in word:
            value = part.text if part.literal else self._value(part.text)
            pieces = [value] if part.quoted else _split(value) if value != part.text else [value]
            done[-1] += pieces[0]
            done += pieces[1:]
        return [one for one in done if one or is_quoted]

    def _value(self, text: str) -> str:
        text = re.sub(r"\$\(.*\)|`[^`]*`", UNKNOWN, text, flags=re.DOTALL)
        value = _VARIABLE.sub(lambda found: self._parameter(found[1] or found[2] or ""), text)
        return value if len(value) <= LONGEST_VALUE else UNKNOWN

    def _parameter(self, text: str) -> str:
        match = _PARAMETER.fullmatch(text)
        if match is None:
            return UNKNOWN
        name, operator, other = match.groups()
        value = self._lookup(name)
        if operator is None:
            # an argument that is not given is empty; a variable may come from outside
            return value if value is not None else "" if name.isdigit() else UNKNOWN
        if operator.endswith("+"):
            return self._value(other) if value else ""
        return value if value else self._value(other)

    def _lookup(self, name: str) -> str | None:
        if name in ("@", "*"):
            return " ".join(self.arguments)
        if name.isdigit():
            number = int(name)
            return (
                UNKNOWN
                if number == 0
                else self.arguments[number - 1]
                if number <= len(self.arguments)
                else None
            )
        return self.variables.get(name)


def _plain(word: Word) -> str:
    return "" if any(part.quoted for part in word) else "".join(part.text for part in word)


def _head(word: Word) -> str:
    return word[0].text if word and not word[0].quoted else ""


def _split(value: str) -> list[str]:
    """Fall apart at blanks, blanks at the ends included."""
    pieces = re.split(r"[ \t\n]+", value)
    return pieces or [""]


def _either(taken: bool | None, state: bool | None) -> bool | None:
    return (
        True
        if True in (taken, state)
        else None
        if None in (taken if taken is not None else False, state)
        else False
    )
