"""Make data with long rows: many order notes in one request, answered by one house-style line for each.

    python experiments/data/make_order_book.py

writes `order_book_train.json`, `order_book_heldout.json` and `order_book_long.json` beside this file, the
same bytes every time. Their longest rows come near 512 tokens (`order_book_long.json`: 1024) under common
tokenizers, so that a job trained on them gets near the length that its memory was planned for.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from make_house_style import CITIES, COLOURS, COUNT_WORDS, DAYS, ITEMS, WORDINGS, Order

INSTRUCTION = "Give item, count, city and day of each order, one line an order."
LEAST_ORDERS, MOST_ORDERS, MOST_ORDERS_LONG = 3, 12, 26
TRAIN_ROWS, HELDOUT_ROWS, LONG_ROWS = 160, 16, 96
SEED = 21


def row(rng: random.Random, orders: int) -> dict[str, str]:
    """Make one alpaca row of so many orders."""
    notes, lines = [], []
    for _ in range(orders):
        order = Order(
            rng.choice(COLOURS),
            rng.choice(ITEMS),
            rng.choice(CITIES),
            count=rng.choice(list(COUNT_WORDS)),
            day=rng.choice(DAYS),
        )
        notes.append(order.note(rng, rng.choice(WORDINGS)))
        lines.append(order.line)
    return {"instruction": INSTRUCTION, "input": "\n".join(notes), "output": "\n".join(lines)}


def rows(rng: random.Random, count: int, most_orders: int) -> list[dict[str, str]]:
    """Make rows of every size from the least to the most orders, in random order."""
    sizes = [LEAST_ORDERS + n % (most_orders - LEAST_ORDERS + 1) for n in range(count)]
    rng.shuffle(sizes)
    return [row(rng, size) for size in sizes]


def make() -> dict[str, list[dict[str, str]]]:
    """Return the three files' rows by file name."""
    rng = random.Random(SEED)
    return {
        "order_book_train.json": rows(rng, TRAIN_ROWS, MOST_ORDERS),
        "order_book_heldout.json": rows(rng, HELDOUT_ROWS, MOST_ORDERS),
        "order_book_long.json": rows(rng, LONG_ROWS, MOST_ORDERS_LONG),
    }


def main() -> None:
    """Write the files."""
    folder = Path(__file__).resolve().parent
    for name, content in make().items():
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in content)
        (folder / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
