"""An inference run again: are the answers the same ones?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmsys_exp.reproduce.drift import ANSWERS, SPEED, TOKENS
from llmsys_exp.reproduce.judge.row import Row, number_row
from llmsys_exp.reproduce.judge.training import Terms
from llmsys_exp.reproduce.series import lines_of
from llmsys_exp.reproduce.tolerances import EXACT, Tolerance, least_equal_answers, score_tolerance
from llmsys_exp.reproduce.tolerances import SPEED as SPEED_BOUND

Answers = Mapping[int, tuple[bytes, bytes]]
"""Place in the prompt file -> digests of question and answer."""
LONGEST_ANSWER_BYTES = 64 << 20


def read_answers(path: Path) -> dict[int, tuple[bytes, bytes]]:
    """Read a journal as `digests_in` does; an absent file has no answers."""
    try:
        return digests_in(path)
    except FileNotFoundError:
        return {}


def digests_in(path: Path) -> dict[int, tuple[bytes, bytes]]:
    """Read a journal of answers as digests: the texts of a large one would not fit into memory.

    Of two answers to a prompt the last one counts.

    Raises:
        FileNotFoundError: where there is none.
    """
    return {
        row["index"]: (_digest(row.get("instruction"), row.get("input")), _digest(row.get("output")))
        for row in answers_in(path)
    }


def answers_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the answers of a journal, without a line that a kill has cut.

    Raises:
        FileNotFoundError: where there is none.
    """
    for line in lines_of(path, longest_bytes=LONGEST_ANSWER_BYTES):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("index"), int):
            yield row


def answer_rows(old: Answers, new: Answers, terms: Terms, *, sampled: bool) -> Iterator[Row]:
    """Compare answers by their place in the prompt file."""
    if not old:
        return
    shared = [index for index in sorted(old) if index in new]
    asked = sum(old[index][0] == new[index][0] for index in shared)
    same_prompts = asked == len(old) == len(new)
    gap = "none" if same_prompts else f"{len(old) - asked} prompts"
    yield Row("the same prompts", TOKENS, len(old), asked, gap, "exact", same_prompts, EXACT[1])
    other = [index for index in shared if old[index][1] != new[index][1]]
    equal = len(shared) - len(other)
    least, reason = least_equal_answers(terms.relation, sampled=sampled)
    said = "none" if equal == len(old) else f"{len(old) - equal} differ"
    if other:
        said += f", the first at prompt {other[0]}"
    bound = "exact" if least == 1 else f"{100 * least:.3g} % equal"
    yield Row("equal answers", ANSWERS, len(old), equal, said, bound, equal >= least * len(old), reason)


def result_rows(old: Mapping[str, Any], new: Mapping[str, Any], terms: Terms) -> Iterator[Row | None]:
    """Compare what the inference worker left in its results."""
    exact = Tolerance(*EXACT)
    yield number_row("prompts", TOKENS, old.get("prompts"), new.get("prompts"), exact)
    yield number_row("prompt tokens", TOKENS, old.get("prompt_tokens"), new.get("prompt_tokens"), exact)
    name = str(old.get("score_name", "score"))
    yield number_row(name, ANSWERS, old.get("score"), new.get("score"), score_tolerance(terms.relation))
    key = "tokens_per_s"
    yield number_row("new tokens a second", SPEED, old.get(key), new.get(key), Tolerance(*SPEED_BOUND))


def _digest(*texts: Any) -> bytes:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).digest()
