"""Conditions of a shell script, `[ ... ]` and `[[ ... ]]`, as far as texts decide them."""

from __future__ import annotations

import re

UNKNOWN = "\0"
"""Stands in a value for what only running the script would tell."""


def condition(words: list[str]) -> bool | None:
    """Return the answer of `[ ... ]` where it depends on texts alone; None where only running would tell.

    >>> condition(["-z", ""]), condition(["a", "!=", "b"]), condition(["-f", "x"])
    (True, True, None)
    """
    if any(UNKNOWN in word for word in words):
        return None
    if words[:1] == ["!"]:
        answer = condition(words[1:])
        return None if answer is None else not answer
    if len(words) <= 1:
        return bool(words and words[0])
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 3 and words[1] in ("=", "==", "!="):
        return (words[0] == words[2]) == (words[1] != "!=")
    if len(words) == 3 and words[1] in _NUMERIC and all(_is_whole(one) for one in (words[0], words[2])):
        left, right = int(words[0]), int(words[2])
        return _NUMERIC[words[1]](left, right)
    return None


_NUMERIC = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,18}", text) is not None
