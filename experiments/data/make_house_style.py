"""Make the shipped data set: short order notes in free wording, answered by one line in a fixed house style.

    python experiments/data/make_house_style.py

writes `house_style_train.json`, `house_style_heldout.json` and `prompts.json` beside this file, the same
bytes every time. No combination of colour, item and city is in two of the files, and one in three held-out
notes names a city or uses a wording that training never shows.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION = "Give item, count, city and day of this order."
TRAIN_ROWS, HELDOUT_ROWS, PROMPT_ROWS = 400, 64, 48
SEED = 20

COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey", "yellow")
ITEMS = (
    "lamp",
    "chair",
    "desk",
    "mug",
    "rug",
    "clock",
    "shelf",
    "sofa",
    "mirror",
    "basket",
    "kettle",
    "tent",
)
PLURALS = {"shelf": "shelves"}
CITIES = ("Oslo", "Rome", "Paris", "Madrid", "Dublin", "Vienna", "Berlin", "Lisbon", "Prague", "Athens")
NEW_CITIES = ("London", "Milan", "Geneva", "Warsaw")
PEOPLE = ("Nora", "Liam", "Ada", "Omar", "Mia", "Jonas", "Priya", "Tom")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COUNT_WORDS = {
    1: "one",
    2: "two",
    3: "three",
    4: "four",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    12: "a dozen",
}

WORDINGS = (
    "Please send {count} {goods} to {city} by {day}.",
    "{person} in {city} wants {count} {goods} on {day}.",
    "We need {count} {goods} in {city}, {day} at the latest.",
    "Could {city} get {count} {goods} on {day}?",
    "For {day}: {count} {goods}, ship to {city}.",
    "{person} ordered {count} {goods} for {city}, due {day}.",
    "By {day} the {city} shop must have {count} {goods}.",
    "{city} is out of stock, so {count} {goods} for {day}.",
    "Hi, {person} here. {count} {goods} to {city}, {day} please.",
    "Book {count} {goods} for our {city} office on {day}.",
    "{count} {goods} should reach {person} in {city} on {day}.",
    "Our {city} customer asked for {count} {goods} before {day}.",
)
NEW_WORDINGS = (
    "Can you bring {person} {count} {goods}? The address is in {city}, {day} suits.",
    "On {day} a van leaves for {city}, put {count} {goods} on it.",
    "{person} moves to {city} on {day} and takes {count} {goods}.",
)


@dataclass(frozen=True)
class Order:
    """What a note says, before it is put into words."""

    colour: str
    item: str
    city: str
    count: int
    day: str

    @property
    def line(self) -> str:
        """The answer in the house style."""
        return f"item: {self.colour} {self.item} | count: {self.count} | city: {self.city} | day: {self.day}"

    def note(self, rng: random.Random, wording: str) -> str:
        """Put the order into words; counts are written out as often as not."""
        goods = self.item if self.count == 1 else PLURALS.get(self.item, f"{self.item}s")
        count = COUNT_WORDS[self.count] if rng.random() < 0.5 else str(self.count)
        text = wording.format(
            count=count,
            goods=f"{self.colour} {goods}",
            city=self.city,
            day=self.day,
            person=rng.choice(PEOPLE),
        )
        return text[0].upper() + text[1:]


def combinations(rng: random.Random, cities: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return every colour, item and city there is, in random order."""
    every = [(colour, item, city) for colour in COLOURS for item in ITEMS for city in cities]
    rng.shuffle(every)
    return every


def row(rng: random.Random, goods: tuple[str, str, str], wording: str) -> dict[str, str]:
    """Make one alpaca row."""
    order = Order(*goods, count=rng.choice(list(COUNT_WORDS)), day=rng.choice(DAYS))
    return {"instruction": INSTRUCTION, "input": order.note(rng, wording), "output": order.line}


def make() -> dict[str, list[dict[str, str]]]:
    """Return the three files' rows by file name."""
    rng = random.Random(SEED)
    known, unseen_city = combinations(rng, CITIES), combinations(rng, NEW_CITIES)
    train = [row(rng, known.pop(), WORDINGS[n % len(WORDINGS)]) for n in range(TRAIN_ROWS)]

    def unseen(n: int) -> dict[str, str]:
        goods = unseen_city.pop() if n % 6 == 0 else known.pop()
        wordings = NEW_WORDINGS if n % 6 == 3 else WORDINGS
        return row(rng, goods, wordings[(n // 6 if n % 6 == 3 else n) % len(wordings)])

    heldout = [unseen(n) for n in range(HELDOUT_ROWS)]
    prompts = [unseen(n) for n in range(PROMPT_ROWS)]
    rng.shuffle(train)
    return {"house_style_train.json": train, "house_style_heldout.json": heldout, "prompts.json": prompts}


def main() -> None:
    """Write the files."""
    folder = Path(__file__).resolve().parent
    for name, rows in make().items():
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in rows)
        (folder / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
