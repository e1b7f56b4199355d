"""Task scores: how near an answer comes to its reference, from 0 to 1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from llmsys_exp.errors import unknown_name

NO_SCORE = "none"


def exact_match(answer: str, reference: str) -> float:
    """1 when the texts are equal but for white space.

    >>> exact_match(" item:  lamp", "item: lamp")
    1.0
    """
    return float(answer.split() == reference.split())


def field_f1(answer: str, reference: str) -> float:
    """F1 over `name: value` fields that stand between `|`, `;` or line ends.

    >>> field_f1("item: red lamp | count: 3", "item: red lamp | count: 2")
    0.5
    """
    given, wanted = _fields(answer), _fields(reference)
    hits = sum((given & wanted).values())
    return 2 * hits / (sum(given.values()) + sum(wanted.values())) if hits else 0.0


SCORES: dict[str, Callable[[str, str], float]] = {"exact_match": exact_match, "field_f1": field_f1}


def check_score(name: str) -> None:
    """Refuse a score that is not known."""
    if name != NO_SCORE and name not in SCORES:
        raise unknown_name("score", name, [*SCORES, NO_SCORE], where="data.score")


def mean_score(name: str, answers: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean over all answers."""
    score = SCORES[name]
    return sum(map(score, answers, references)) / len(references)


def _fields(text: str) -> Counter[tuple[str, str]]:
    pairs = (part.partition(":") for part in re.split(r"[|;\n]", text) if part.strip())
    return Counter((_normal(name), _normal(value)) for name, _, value in pairs)


def _normal(text: str) -> str:
    return " ".join(text.lower().split())
