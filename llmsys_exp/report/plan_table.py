"""Rows of plans as one aligned table that is made to fit the width there is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from llmsys_exp.report.console import VERDICT_STYLES, Console
from llmsys_exp.report.plan_columns import VERDICT, Column, table_columns
from llmsys_exp.report.plan_rows import (
    DOES_NOT_FIT,
    FAILED,
    FITS,
    NO_LIMIT,
    TIGHT,
    Row,
    count_verdicts,
)

LEAST_NOTE = 34  # narrower than this a note is easier to read below its row
DROPPED = ("allocated", "largest part", "left", "budget")  # in this order, where room is short
COUNTED = {
    FITS: ("fits", "fit"),
    TIGHT: ("tight", "tight"),
    DOES_NOT_FIT: ("does not fit", "do not fit"),
    NO_LIMIT: ("without a limit", "without a limit"),
    FAILED: ("failed", "failed"),
}
STYLES = {**VERDICT_STYLES, FAILED: "red", NO_LIMIT: "bold"}


def show_rows(console: Console, rows: Sequence[Row], *, title: str) -> None:
    """Write a heading, what all rows share, and one line for each row."""
    if not rows:
        return
    console.title(title)
    longest = max(len(fix_of(row)) for row in rows)
    columns, remarks = _make_room(table_columns(rows), console.width, min(LEAST_NOTE, longest))
    for text in remarks:
        for line in textwrap.wrap(text, console.width, initial_indent="  ", subsequent_indent="  "):
            console.line(line)
    _write(console, columns, rows)


def summary_line(rows: Sequence[Row], *, seconds: float, repeated: int = 0, total: int | None = None) -> str:
    """Say how many rows have which verdict, and how long they took.

    Args:
        rows: what was planned.
        seconds: how long it took.
        repeated: how many rows took over the forecast of another.
        total: how many there would have been, where that is known.
    """
    counts = count_verdicts(rows)
    parts = [f"{count} {COUNTED[name][count != 1]}" for name, count in counts.items()]
    cut = total is not None and total > len(rows)
    noun = f"of {total} points" if cut else "point" if len(rows) == 1 else "points"
    took = f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    text = f"{len(rows)} {noun} in {took}: {', '.join(parts) or 'none planned'}."
    if repeated:
        has, was = ("has", "was") if repeated == 1 else ("have", "were")
        text += f"  {repeated} {has} the settings of another and {was} not forecast again."
    return text


def fix_of(row: Row) -> str:
    """Return the change that would make a row fit; nothing where it fits or none is known."""
    return str(row["fix"] or "")


def _make_room(columns: list[Column], width: int, note_width: int) -> tuple[list[Column], list[str]]:
    """Take constant columns out, then those that matter least, until the rest fits; say what was taken."""
    remarks: list[str] = []
    note = note_width + 2 if note_width else 0
    if len(columns[0].cells) > 1 and _taken(columns) + note > width:
        shared = [column for column in columns if column.may_leave and column.shared]
        columns = [column for column in columns if column not in shared]
        remarks += [f"Every row: {', '.join(f'{c.title} {c.shared}' for c in shared)}."] if shared else []
    dropped: list[str] = []
    for title in DROPPED:
        if _taken(columns) > width and any(column.title == title for column in columns):
            columns = [column for column in columns if column.title != title]
            dropped.append(title)
    if dropped:
        remarks.append(f"Not shown for want of width: {', '.join(dropped)}.")
    return columns, remarks


@dataclass(frozen=True)
class _Layout:
    """Where the columns of a table begin and end."""

    columns: Sequence[Column]
    width: int

    @property
    def taken(self) -> int:
        return _taken(self.columns)

    def line(self, cells: Sequence[str], count: int | None = None) -> str:
        """Return the first cells (all by default) padded to their columns."""
        texts = [
            cell.rjust(column.width) if column.right else cell.ljust(column.width)
            for cell, column in zip(cells[:count], self.columns, strict=False)
        ]
        return "  " + "  ".join(texts)

    def beside(self, start: str, note: str) -> list[str]:
        """Return the lines of a start with a wrapped text beside it."""
        indent = start + "  "
        return textwrap.wrap(
            note,
            width=max(self.width, len(indent) + LEAST_NOTE),
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _write(console: Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Write header and rows; a fix stands in a last column where there is room, else below its row."""
    layout = _Layout(columns, console.width)
    fixes = [fix_of(row) for row in rows]
    longest = max(map(len, fixes))
    in_column = longest > 0 and console.width - layout.taken - 2 >= min(LEAST_NOTE, longest)
    for number in (0, 1):
        header = layout.line([column.heading[number] for column in columns])
        header += "  to make it fit" if in_column and number else ""
        if header.strip():
            console.line(console.style(header.rstrip(), "dim"))
    verdict = next(index for index, column in enumerate(columns) if column.title == VERDICT)
    verdict_at = _taken(columns[:verdict]) + 2
    for number, (row, fix) in enumerate(zip(rows, fixes, strict=True)):
        cells = [column.cells[number] for column in columns]
        if row["error"]:
            lines = layout.beside(layout.line(cells, verdict + 1), row["error"])
        elif fix and in_column:
            lines = layout.beside(layout.line(cells), fix)
        else:
            lines = [layout.line(cells).rstrip(), *([f"      fits with {fix}"] if fix else [])]
        console.line(_coloured(console, lines[0], verdict_at, row["verdict"]))
        for text in lines[1:]:
            console.line(text)


def _taken(columns: Sequence[Column]) -> int:
    return sum(column.width + 2 for column in columns)


def _coloured(console: Console, text: str, start: int, verdict: str) -> str:
    end = start + len(verdict)
    return text[:start] + console.style(verdict, STYLES[verdict]) + text[end:]
