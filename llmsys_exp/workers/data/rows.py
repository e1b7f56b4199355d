"""Prompts and tasks in alpaca's columns, with errors that name the file and the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import closest
from llmsys_exp.workers.data.records import DataError, kind_of, read_records

__all__ = ["DataError", "Row", "cell", "need_text", "read_rows"]

FORMAT_HINT = 'A row looks like {"instruction": "...", "input": "...", "output": "..."}'


@dataclass(frozen=True)
class Row:
    """One task; `output` is empty where only a prompt was asked for."""

    instruction: str
    input: str = ""
    output: str = ""
    max_new_tokens: int | None = None
    """Of a prompt: how long its answer may get, where it is not as long as the others'."""

    @property
    def request(self) -> str:
        """What the user says: the instruction, and the input below it."""
        return f"{self.instruction}\n\n{self.input}" if self.input else self.instruction


def read_rows(
    path: Path, columns: Mapping[str, str], *, need_output: bool = True, limit: int | None = None
) -> list[Row]:
    """Read a file of tasks.

    Args:
        path: The file.
        columns: Names in the file of `instruction`, `input` and `output`.
        need_output: Refuse rows without an answer.
        limit: Use only the first rows.

    Raises:
        DataError: Unreadable file, invalid JSON, no rows, or a row without a needed column.
    """
    rows: list[Row] = []
    for where, value in read_records(Path(path).absolute()):
        if limit is not None and len(rows) >= limit:
            break
        rows.append(parse_row(value, columns, where=where, need_output=need_output))
    if not rows:
        raise empty_data(path)
    return rows


def empty_data(source: str | Path) -> DataError:
    """Describe a data set without rows."""
    return DataError(
        "The data set is empty", where=str(source), do=f"Give it at least one row.  {FORMAT_HINT}"
    )


def parse_row(value: Any, columns: Mapping[str, str], *, where: str, need_output: bool) -> Row:
    """Read one record in alpaca's columns."""
    need_object(value, where=where)
    for name in ("instruction", "output") if need_output else ("instruction",):
        need_text(value, name, columns, where=where)
    texts = (cell(value, name, columns) for name in ("instruction", "input", "output"))
    return Row(*texts, max_new_tokens=None if need_output else row_limit(value, columns, where=where))


def row_limit(value: Mapping[str, Any], columns: Mapping[str, str], *, where: str) -> int | None:
    """Return `max_new_tokens` of a prompt, None where it says nothing; csv files hold numbers as text."""
    column = columns.get("max_new_tokens", "max_new_tokens")
    found = value.get(column)
    if found is None or found == "":
        return None
    if isinstance(found, (int, str)) and not isinstance(found, bool) and str(found).strip().isdecimal():
        number = int(found)
        if number > 0:
            return number
    what = f"The row's {column!r} must be a whole number above 0, not {found!r}"
    raise DataError(what, where=where, do="Mend it or leave it out")


def need_object(value: Any, *, where: str, hint: str = FORMAT_HINT) -> None:
    """Refuse a record that is no object."""
    if not isinstance(value, dict):
        raise DataError(f"A row must be an object, not {kind_of(value)}", where=where, do=hint)


def cell(value: Mapping[str, Any], name: str, columns: Mapping[str, str]) -> str:
    """Return a column as text; empty where it is absent or null."""
    found = value.get(columns.get(name, name))
    return "" if found is None else str(found)


def need_text(value: Mapping[str, Any], name: str, columns: Mapping[str, str], *, where: str) -> str:
    """Return a column that must hold text."""
    column = columns.get(name, name)
    found = need_column(value, name, columns, where=where)
    if isinstance(found, str) and found.strip():
        return found
    problem = "is empty" if found is None or isinstance(found, str) else "is no text"
    raise DataError(f"The row's {column!r} {problem}", where=where, do="Fill it in or leave the row out")


def need_column(value: Mapping[str, Any], name: str, columns: Mapping[str, str], *, where: str) -> Any:
    """Return a column that must be there, whatever it holds."""
    column = columns.get(name, name)
    if column in value:
        return value[column]
    near = closest(column, list(map(str, value)))
    suggestion = f"Did you mean the column {near!r}?  " if near else ""
    hint = f"  {FORMAT_HINT}" if name in ("instruction", "output") else ""
    raise DataError(
        f"The row has no {column!r}",
        where=where,
        do=f"{suggestion}Name the columns with data.columns.{hint}",
    )
