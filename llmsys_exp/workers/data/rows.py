"""Alpaca-style rows from json and jsonl files, with errors that name the file and the row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError, closest

FORMAT_HINT = 'A row looks like {"instruction": "...", "input": "...", "output": "..."}'


class DataError(UserError):
    """A data file cannot be used as it is."""

    kind = "data"


@dataclass(frozen=True)
class Row:
    """One task; `output` is empty where only a prompt was asked for."""

    instruction: str
    input: str = ""
    output: str = ""

    @property
    def request(self) -> str:
        """What the user says: the instruction, and the input below it."""
        return f"{self.instruction}\n\n{self.input}" if self.input else self.instruction


def read_rows(
    path: Path, columns: Mapping[str, str], *, need_output: bool = True, limit: int | None = None
) -> list[Row]:
    """Read a data file; `.jsonl` holds one object a line, any other name one JSON list.

    Args:
        path: The file.
        columns: Names in the file of `instruction`, `input` and `output`.
        need_output: Refuse rows without an answer.
        limit: Use only the first rows.

    Raises:
        DataError: Unreadable file, invalid JSON, no rows, or a row without a needed column.
    """
    rows: list[Row] = []
    for where, value in _records(path):
        if limit is not None and len(rows) >= limit:
            break
        rows.append(_row(value, columns, where=where, need_output=need_output))
    if not rows:
        raise DataError(
            "The data set is empty", where=str(path), do=f"Give it at least one row.  {FORMAT_HINT}"
        )
    return rows


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The data file cannot be read: {error}", where=str(path)) from None
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"{path}, line {number}", _parse(line, path, first_line=number)
        return
    values = _parse(text, path, first_line=1) if text.strip() else []
    if not isinstance(values, list):
        hint = "One object a line needs a file name that ends in .jsonl"
        raise DataError(f"The file must hold a list of rows, not {_kind(values)}", where=str(path), do=hint)
    for number, value in enumerate(values, start=1):
        yield f"{path}, row {number}", value


def _parse(text: str, path: Path, *, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        hint = "One object a line needs a file name that ends in .jsonl" if error.msg == "Extra data" else ""
        raise DataError("Not valid JSON", where=f"{path}:{line}", why=error.msg, do=hint) from None


def _row(value: Any, columns: Mapping[str, str], *, where: str, need_output: bool) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"A row must be an object, not {_kind(value)}", where=where, do=FORMAT_HINT)
    cells: dict[str, str] = {}
    for name in ("instruction", "input", "output"):
        column = columns.get(name, name)
        cell = value.get(column)
        if name == "instruction" or (name == "output" and need_output):
            _check_cell(column, cell, where=where, present=list(value))
        cells[name] = "" if cell is None else str(cell)
    return Row(**cells)


def _check_cell(column: str, cell: Any, *, where: str, present: list[str]) -> None:
    if isinstance(cell, str) and cell.strip():
        return
    if column in present:
        problem = (
            f"{column!r} is empty"
            if cell in (None, "") or isinstance(cell, str)
            else f"{column!r} is no text"
        )
        raise DataError(f"The row's {problem}", where=where, do="Fill it in or leave the row out")
    near = closest(column, present)
    suggestion = f"Did you mean the column {near!r}?  " if near else ""
    raise DataError(
        f"The row has no {column!r}",
        where=where,
        do=f"{suggestion}Name the columns with data.columns.  {FORMAT_HINT}",
    )


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
