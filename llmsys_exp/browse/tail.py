"""The end of a log, and what is added to it for as long as its run lasts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from llmsys_exp.launch.process import MARKER
from llmsys_exp.report.console import clean

BLOCK_BYTES = 1 << 16
MOST_BYTES = 8 << 20
"""Of the end of a log that are looked at for its last lines."""
_FIGURES = ("loss", "lr", "tokens_per_s")


def readable(data: bytes) -> list[str]:
    """Return the lines of a piece of a log; what workers tell whoever started them stands there in words."""
    lines = clean(data.decode("utf-8", errors="replace")).splitlines()
    said = (_event(line.removeprefix(MARKER)) if line.startswith(MARKER) else line for line in lines)
    return [line for line in said if line is not None]


def _event(text: str) -> str | None:
    """Say an event in a line; None of one that only steers."""
    try:
        event = json.loads(text)
        if event["event"] == "progress":
            done = f"{event['name']}: {event['unit']} {event['done']} of {event['total']}"
            figures = (event.get(key) for key in _FIGURES)
            told = (
                f"{key.replace('_', ' ').replace(' per ', '/')} {value:.4g}"
                for key, value in zip(_FIGURES, figures, strict=True)
                if isinstance(value, (int, float))
            )
            return ", ".join([done, *told])
        said = event.get("text") if event["event"] in ("note", "error") else None
        return None if said is None else f"{event['event']}: {said}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MARKER}{text}"


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last lines of a file, and where it ended; an absent one has none.

    Raises:
        OSError: when it cannot be read.
    """
    if not path.is_file():
        return [], 0  # none yet, or something that could be read for ever
    try:
        with path.open("rb") as stream:
            end = place = stream.seek(0, os.SEEK_END)
            data, lines = b"", list[str]()
            while place > 0 and len(lines) <= count and len(data) < MOST_BYTES:
                size = min(max(BLOCK_BYTES, len(data)), place)
                place -= size
                stream.seek(place)
                data = stream.read(size) + data
                lines = readable(data)
    except FileNotFoundError:
        return [], 0
    return lines[-count:] if count else [], end


def added(path: Path, place: int, is_going: Callable[[], bool], poll_s: float) -> Iterator[str]:
    """Yield the lines that are added to a file behind a place, until nobody works on it any more.

    A file that is shorter than it was, or another one of its name, is read from its start.
    """
    known = _inode(path)
    is_last = False
    while True:
        if _inode(path) != known or _size(path) < place:
            known, place = _inode(path), 0
        data = _read(path, place)
        if data and not is_last:
            data = data[: data.rfind(b"\n") + 1]  # a line that is being written is left for the next look
        if data:
            place += len(data)
            yield from readable(data)
            continue
        if is_last:
            return
        is_last = not is_going()
        if not is_last:
            time.sleep(poll_s)


def _read(path: Path, place: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(place)
            return stream.read(MOST_BYTES)
    except FileNotFoundError:
        return b""


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
