"""Make the stand-in for AlpacaEval's prompts: as many, of the same shape and lengths, in words of our own.

    python experiments/data/make_alpaca_prompts.py

writes `alpaca_prompts.json` beside this file, the same bytes every time: 805 different requests, as many of
each of five kinds as the real set has from each source. Under common tokenizers half of them have less than
30 tokens, the mean is below 40 and a few bring a text of hundreds along. Answers to them say nothing of how
good a model is; for that take the real file, as it is: `inference.prompts=FILE`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

from alpaca_wordings import ADDED, SENTENCES, SHORT, SLOTS, TASKS

NAME = "alpaca_prompts.json"
SEED = 805
COUNTS = {"helpful_base": 129, "koala": 156, "oasst": 188, "selfinstruct": 252, "vicuna": 80}
"""Prompts of each kind."""
WITH_TEXT, WITH_TABLE = 0.09, 0.03
"""Shares of requests that bring a longer text, or rows of a table, along."""
LEAST_SENTENCES, MOST_SENTENCES, MEAN_SENTENCES = 2, 32, 4
WISHES = (0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2)
"""Wishes added to a request; one is drawn."""
SLOT = re.compile(r"\{([a-z]+)(2?)\}")
"""`{city}`, and `{city2}` for another one."""
HEADER = ("name", "city", "month", "thing", "amount")


def fill(rng: random.Random, wording: str) -> str:
    """Put words into the slots of a wording; a slot and its second never get the same."""
    chosen: dict[str, list[str]] = {}

    def word(match: re.Match[str]) -> str:
        slot, second = match.groups()
        pair = chosen.setdefault(slot, rng.sample(SLOTS[slot], 2))
        return pair[bool(second)]

    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", SLOT.sub(word, wording))
    return re.sub(r"(^|[.?!] |\n\n)([a-z])", lambda match: match[1] + match[2].upper(), text)


def plain(rng: random.Random, kind: str) -> str:
    """A request alone, or with a wish or two added."""
    asked, gap, given = fill(rng, rng.choice(SHORT[kind])).partition("\n\n")
    wishes = (fill(rng, one) for one in rng.sample(ADDED, rng.choice(WISHES)))
    return " ".join([asked, *wishes]) + gap + given


def with_text(rng: random.Random, kind: str) -> str:
    """A task about a longer text, which stands below it."""
    name = rng.choice(list(SENTENCES))
    wanted = int(rng.expovariate(1 / MEAN_SENTENCES)) + LEAST_SENTENCES
    sentences: list[str] = []
    while len(sentences) < min(wanted, MOST_SENTENCES):
        sentences += SENTENCES[name]
    text = " ".join(fill(rng, one) for one in sentences[:wanted][:MOST_SENTENCES])
    task = rng.choice(TASKS).replace("{kind}", name)
    return f"{fill(rng, task)}\n\n{text}"


def with_table(rng: random.Random, kind: str) -> str:
    """A task about rows of a table."""
    tasks = (
        "Which of these orders from {city} should be sent first, and why?",
        "Convert the rows below to JSON, one object a row.",
        "Write a {language} program that reads this table and prints the sum for each city.",
        "Find the rows that look wrong and say what is wrong with them.",
    )
    rows = [", ".join(HEADER)]
    for _ in range(rng.randint(2, 9)):
        cells = [rng.choice(SLOTS[slot]) for slot in HEADER[:-1]]
        rows.append(", ".join([*cells, str(rng.randint(3, 950))]))
    return "\n".join([fill(rng, rng.choice(tasks)), "", *rows])


def make() -> dict[str, list[dict[str, str]]]:
    """Return the file's rows by file name."""
    rng = random.Random(SEED)
    kinds = [kind for kind, count in COUNTS.items() for _ in range(count)]
    seen: set[str] = set()
    rows = [{"dataset": f"standin_{kind}", "instruction": _unseen(rng, kind, seen)} for kind in kinds]
    return {NAME: rows}


def _unseen(rng: random.Random, kind: str, seen: set[str]) -> str:
    makers: tuple[Callable[[random.Random, str], str], ...] = (plain, with_text, with_table)
    shares = (1 - WITH_TEXT - WITH_TABLE, WITH_TEXT, WITH_TABLE)
    while True:
        text = rng.choices(makers, weights=shares)[0](rng, kind)
        if text not in seen:
            seen.add(text)
            return text


def main() -> None:
    """Write the file."""
    folder = Path(__file__).resolve().parent
    for name, rows in make().items():
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in rows)
        (folder / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
