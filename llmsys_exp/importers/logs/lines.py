"""Lines of a file that may be huge: one at a time, and no more of them than anybody compares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmsys_exp.errors import UserError

MOST_ROWS = 200_000
"""Logged values that are kept."""
LONGEST_LINE = 1 << 16
"""Characters of a line that are looked at; progress bars write lines without end."""


def read_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file, each cut at `LONGEST_LINE`; what is no UTF-8 is replaced.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline=None) as lines:
            cut = False
            while line := lines.readline(LONGEST_LINE):
                ends = line.endswith("\n")
                if not cut:
                    yield line.rstrip("\n")
                cut = not ends
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror or error}") from error


def kept_note(more: bool) -> tuple[str, ...]:
    """Say that a log held more values than are kept."""
    return (f"only the first {MOST_ROWS:,} values of the log are kept",) if more else ()
