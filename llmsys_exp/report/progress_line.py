"""One line of progress that fits its width: what is done, a bar, figures, time left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmsys_exp.launch.process import Event
from llmsys_exp.report.console import duration

FIXED_KEYS = ("event", "name", "done", "total", "unit")
MEMORY_KEYS = ("peak_gib", "planned_gib")
WIDEST_BAR, NARROWEST_BAR = 24, 6
TEN, TEN_THOUSAND = 10, 10_000
FULL, EMPTY = "━", "─"
_IMPORTANCE = {
    "loss": 9,
    "tokens_per_s": 7,
    "images_per_s": 7,
    MEMORY_KEYS[0]: 6,
    "mfu": 5,
    "lr": 4,
    "grad": 1,
}
"""What is left out first where the line is narrow: the smallest number. Time left counts 8."""
_TIME_LEFT, _OTHERS = 8, 2


@dataclass(frozen=True)
class Piece:
    """One part of the line, how much it matters, and how it is written where there is little room."""

    text: str
    importance: int
    short: str = ""


def progress_line(event: Event, *, left_s: float | None = None, width: int = 100, bar: bool = False) -> str:
    """Write a progress event in one line of at most `width` columns.

    Where that is too narrow, figures are written shorter, then left out, the least important first.
    """
    name, done, total = event.get("name", ""), event.get("done", 0), event.get("total", 0)
    head = f"{name} {done}/{total} {event.get('unit', '')}".rstrip()
    pieces = figures_of(event)
    if left_s is not None:
        pieces.append(Piece(f"{duration(left_s)} left", _TIME_LEFT, f"{_clock(left_s)} left"))
    if _length(head, pieces) > width:
        head = f"{name} {done}/{total}"
        pieces = [Piece(piece.short or piece.text, piece.importance) for piece in pieces]
    while pieces and _length(head, pieces) > width:
        pieces.remove(min(pieces, key=lambda piece: piece.importance))
    room = width - _length(head, pieces) - 2
    bars = [_bar(event, min(WIDEST_BAR, room))] if bar and room >= NARROWEST_BAR else []
    return "  ".join([head, *bars, *(piece.text for piece in pieces)])[:width]


def figures_of(event: Event) -> list[Piece]:
    """Write the measurements of a progress event: those that training has by name, others as they are."""
    pieces: list[Piece] = []
    for key, value in event.items():
        if key in FIXED_KEYS or key == MEMORY_KEYS[1] or value is None:
            continue
        write = _WRITERS.get(key)
        text, short = write(value, event) if write else (_plain(key, value), "")
        pieces.append(Piece(text, _IMPORTANCE.get(key, _OTHERS), short))
    return pieces


def time_left_s(done: int, left: int, elapsed_s: float) -> float | None:
    """Say how long the rest will take, judging by what is done since the clock was started."""
    if done <= 0 or left <= 0:
        return None
    return elapsed_s / done * left


def _length(head: str, pieces: list[Piece]) -> int:
    return len("  ".join([head, *(piece.text for piece in pieces)]))


def _bar(event: Event, width: int) -> str:
    done, total = int(event.get("done", 0)), int(event.get("total", 0))
    full = width * done // total if total else 0
    return FULL * full + EMPTY * (width - full)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _memory(peak: float, event: Event) -> tuple[str, str]:
    planned = event.get(MEMORY_KEYS[1])
    digits = 1 if peak >= 1 else 2
    if planned is None:
        return f"peak {peak:.{digits}f} GiB", f"{peak:.{digits}f} GiB"
    pair = f"{peak:.{digits}f}", f"{planned:.{digits}f}"
    return "{} of {} GiB planned".format(*pair), "{}/{} GiB".format(*pair)


def _speed(value: float, _event: Event) -> tuple[str, str]:
    number = f"{value / 1000:.1f}k" if value >= TEN_THOUSAND else f"{value:,.{0 if value >= TEN else 1}f}"
    return f"{number} tokens/s", f"{number} tok/s"


def _images(value: float, _event: Event) -> tuple[str, str]:
    return f"{value:,.0f} images/s", f"{value:,.0f} img/s"


def _mfu(value: float, _event: Event) -> tuple[str, str]:
    return f"MFU {100 * value:.1f} %", f"MFU {100 * value:.0f}%"


def _rate(value: float, _event: Event) -> tuple[str, str]:
    return f"lr {value:.1e}", ""


def _plain(key: str, value: Any) -> str:
    return f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"


_WRITERS: dict[str, Callable[[Any, Event], tuple[str, str]]] = {
    "lr": _rate,
    "tokens_per_s": _speed,
    "images_per_s": _images,
    "mfu": _mfu,
    MEMORY_KEYS[0]: _memory,
}
