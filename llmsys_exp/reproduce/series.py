"""Figures of single steps out of metrics.jsonl, read line by line: a log may be larger than memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError

LOSS, RATE = "train/loss", "lr"
EVALUATED = "eval/loss"
LONGEST_LINE_BYTES = 1 << 20
MOST_ROWS = 5_000_000
"""Ten times the steps of the longest runs; they take some gigabytes to compare."""
MOST_STEPS = 20_000_000


@dataclass
class Series:
    """One figure by optimizer step, in the order of the log."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """Append a figure."""
        self.steps.append(step)
        self.values.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    def by_step(self) -> dict[int, float]:
        """Return the figures; of a step that stands there twice, the last one."""
        return dict(zip(self.steps, self.values, strict=True))


@dataclass
class Log:
    """What metrics.jsonl tells."""

    losses: Series = field(default_factory=Series)
    rates: Series = field(default_factory=Series)
    evaluations: Series = field(default_factory=Series)
    broken_lines: int = 0
    """Lines that are no figures: cut, or changed by hand."""


def read_log(path: Path) -> Log:
    """Read a log; an absent one is empty.

    Raises:
        UserError: for lines or a length that no run writes.
    """
    log = Log()
    try:
        for line in lines_of(path):
            _take(log, line)
            if len(log.losses) > MOST_ROWS:
                raise UserError(f"The log tells of more than {MOST_ROWS:,} steps", where=str(path))
    except FileNotFoundError:
        return log
    except OSError as error:
        raise UserError(f"Cannot read the log: {error.strerror or error}", where=str(path)) from error
    return log


def log_of_rows(rows: list[Mapping[str, Any]]) -> Log:
    """Make a log of rows with `step`, `loss` and perhaps `lr` and `eval_loss`: logs of other tools."""
    log = Log()
    for row in rows:
        step = row.get("step")
        if not _is_number(step):
            continue
        for key, series in (("loss", log.losses), ("lr", log.rates), ("eval_loss", log.evaluations)):
            if _is_number(row.get(key)):
                series.add(int(step), float(row[key]))
    return log


def lines_of(path: Path, *, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file, which is never held whole.

    Raises:
        UserError: for a line longer than any run writes.
        OSError: when the file cannot be read.
    """
    with path.open("rb") as stream:
        while line := stream.readline(longest_bytes + 1):
            if len(line) > longest_bytes:
                raise UserError(
                    f"A line of the log is longer than {longest_bytes:,} bytes",
                    where=str(path),
                    why="No run writes such a line, so this is another file",
                )
            yield line


def _take(log: Log, line: bytes) -> None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        log.broken_lines += 1
        return
    step = row.get("step") if isinstance(row, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MOST_STEPS:
        log.broken_lines += 1
        return
    for key, series in ((LOSS, log.losses), (RATE, log.rates), (EVALUATED, log.evaluations)):
        if _is_number(row.get(key)):
            series.add(step, float(row[key]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
