"""Text for people: one stream, colours only on a terminal, tables that align."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from planner.units import GIB, MIB

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
VERDICT_STYLES = {"fits": "green", "tight": "yellow", "does not fit": "red"}
LEAST_WRAP = 20
_STEERING = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"  # colours, moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|[^\t\n -~\xa0-\U0010ffff]"
)


@dataclass(frozen=True)
class Console:
    """A stream to write to, and whether it shows colours."""

    stream: TextIO
    colour: bool = False
    width: int = 100

    @classmethod
    def on(cls, stream: TextIO) -> Console:
        """Wrap a stream: colours on a terminal unless NO_COLOR is set, width of the terminal."""
        colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(stream, colour, min(shutil.get_terminal_size((110, 24)).columns, 140))

    @property
    def is_terminal(self) -> bool:
        """Whether bars can be drawn."""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def line(self, text: str = "") -> None:
        """Write one line and flush it."""
        self.stream.write(text + "\n")
        self.stream.flush()

    def title(self, text: str) -> None:
        """Write a heading with an empty line above it."""
        self.line()
        self.line(self.style(text, "bold"))

    def style(self, text: str, *names: str) -> str:
        """Return the text in a style, or as it is where colours do not show."""
        if not self.colour:
            return text
        codes = ";".join(_CODES[name] for name in names)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def table(
        self, rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), right: Sequence[int] = ()
    ) -> None:
        """Write aligned columns; `right` lists those flush right; the last column wraps."""
        for index, text in enumerate(format_table(rows, header=header, right=right, width=self.width)):
            self.line(self.style(text, "dim") if header and index == 0 else text)


def clean(text: str) -> str:
    r"""Return text of a log without what would steer a terminal; of a bar that was redrawn, its last state.

    >>> clean("10 %\r20 %\n\x1b[31mred\x1b[0m")
    '20 %\nred'
    """
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _STEERING.sub("", "\n".join(lines))


def mib(size_bytes: float) -> str:
    """Write a size in MiB with two decimals."""
    return f"{size_bytes / MIB:.2f}"


def gib(size_bytes: float) -> str:
    """Write bytes as GiB with two decimals."""
    return f"{size_bytes / GIB:.2f}"


def duration(seconds: float) -> str:
    """Write a duration the way people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), right: Sequence[int] = (), width: int = 100
) -> list[str]:
    """Return the lines of a table with two spaces between columns, indented by two."""
    everything = [tuple(header), *map(tuple, rows)] if header else [tuple(row) for row in rows]
    if not everything:
        return []
    columns = max(map(len, everything))
    widths = [max(len(row[i]) for row in everything if i < len(row)) for i in range(columns)]
    room = width - sum(widths[:-1]) - 2 * columns
    lines: list[str] = []
    for row in everything:
        lines += _row_lines(row, widths, right, room)
    return lines


def _row_lines(row: Sequence[str], widths: Sequence[int], right: Sequence[int], room: int) -> list[str]:
    last = len(widths) - 1
    cells: list[str] = []
    for index, cell in enumerate(row):
        if index in right:
            cells.append(cell.rjust(widths[index]))
        else:
            cells.append(cell if index == last else cell.ljust(widths[index]))
    if len(row) <= last or last in right or len(row[last]) <= room or room < LEAST_WRAP:
        return ["  " + "  ".join(cells).rstrip()]
    start = "  " + "  ".join(cells[:-1]) + "  "
    return textwrap.wrap(
        row[last],
        width=len(start) + room,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
