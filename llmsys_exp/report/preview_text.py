"""A preview of training data as text: what is learnt in colour, or between marks where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmsys_exp.report.console import Console

LEARNT = ("«", "»")
BETWEEN = "|"
SHOWN_TOKENS = 400
"""Of a longer example the beginning and the end are shown."""

Piece = tuple[str, bool]
"""Text of a token, and whether it is learnt."""


def show_preview(console: Console, shown: Mapping[str, Any]) -> None:
    """Print examples, counts, lengths and notes."""
    how = "in green" if console.colour else f"between {LEARNT[0]} and {LEARNT[1]}"
    console.title(f"First examples ({BETWEEN} between tokens, what is learnt {how})")
    for number, example in enumerate(shown["examples"], start=1):
        _show_example(console, number, example)
    counts = shown["counts"]
    console.title("Training data")
    console.table([[_said(name), f"{value:,}"] for name, value in counts.items()], right=(1,))
    lengths = shown["lengths"]
    header = ["per sequence", *next(iter(lengths.values()))]
    rows = [[name, *(f"{value:,}" for value in one.values())] for name, one in lengths.items()]
    console.line()
    console.table(rows, header=header, right=range(1, len(header)))
    console.line()
    for note in shown["notes"]:
        console.line(f"  note: {note}")


def _said(name: str) -> str:
    return {"heldout": "held-out examples", "learnt": "tokens that are learnt"}.get(name, name)


def _show_example(console: Console, number: int, example: Mapping[str, Any]) -> None:
    pieces = list(zip(map(_visible, example["texts"]), example["learnt"], strict=True))
    learnt = sum(example["learnt"])
    packed = f", {len(example['lengths'])} examples" if len(example["lengths"]) > 1 else ""
    console.line()
    head = f"  {number}: {len(pieces)} tokens, {learnt} learnt{packed}"
    console.line(console.style(head, "bold"))
    if len(pieces) > SHOWN_TOKENS:
        left_out = len(pieces) - SHOWN_TOKENS
        half = SHOWN_TOKENS // 2
        pieces = [*pieces[:half], (f"\n... {left_out} tokens ...\n", False), *pieces[-half:]]
    for line in _text(console, pieces).split("\n"):
        console.line(f"  {line}")


def _text(console: Console, pieces: Sequence[Piece]) -> str:
    parts = []
    for is_learnt, texts in _stretches(pieces):
        joined = BETWEEN.join(texts)
        if not is_learnt:
            parts.append(console.style(joined, "dim"))
        elif console.colour:
            # each line on its own, so that pagers keep the colour
            parts.append("\n".join(console.style(line, "green", "bold") for line in joined.split("\n")))
        else:
            parts.append(f"{LEARNT[0]}{joined}{LEARNT[1]}")
    return BETWEEN.join(parts)


def _stretches(pieces: Sequence[Piece]) -> Iterator[tuple[bool, list[str]]]:
    """Runs of tokens that are learnt, or not."""
    texts: list[str] = []
    for at, (text, is_learnt) in enumerate(pieces):
        texts.append(text)
        if at + 1 == len(pieces) or pieces[at + 1][1] != is_learnt:
            yield is_learnt, texts
            texts = []


def _visible(text: str) -> str:
    """A token as it can be printed: line ends shown and kept, nothing that steers the terminal."""
    safe = "".join(one if one.isprintable() or one == "\n" else f"\\x{ord(one):02x}" for one in text)
    return safe.replace("\n", "⏎\n")
