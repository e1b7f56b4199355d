"""Records of a data set, each with its place: json, jsonl, csv, parquet, and what `datasets` reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError, unknown_name

FILE_KINDS = (".json", ".jsonl", ".csv", ".parquet")
LONGEST_CELL = 2**31 - 1
JSONL_HINT = "One object a line needs a file name that ends in .jsonl"

Record = tuple[str, Any]
"""Where a record stands, in words, and the record."""


class DataError(UserError):
    """A data file cannot be used as it is."""

    kind = "data"


def read_records(source: str | Path, *, subset: str | None = None, split: str = "train") -> Iterator[Record]:
    """Yield the records of a file, of a folder that `datasets` reads, or of a hub data set in the cache.

    Raises:
        DataError: naming file and line or row of what cannot be read.
    """
    path = Path(source)
    if not path.is_absolute():
        yield from _hub_records(str(source), subset=subset, split=split)
    elif path.is_dir():
        yield from _folder_records(path, subset=subset, split=split)
    else:
        readers = {".jsonl": _json_lines, ".csv": _csv_rows, ".parquet": _parquet_rows}
        yield from readers.get(path.suffix.lower(), _json_list)(path)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file that hold something, each with its place.

    Raises:
        DataError: naming the line that is not UTF-8.
    """
    for _, where, text in _lines(path):
        yield where, text


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    try:
        with path.open("rb") as stream:
            # not str.splitlines: JSON texts may hold other line separators as they are
            for number, line in enumerate(stream, start=1):
                text = _decoded(line, path, number).strip()
                if text:
                    yield number, f"{path}, line {number}", text
    except OSError as error:
        raise _unreadable(path, error) from None


def _json_lines(path: Path) -> Iterator[Record]:
    for number, where, text in _lines(path):
        yield where, _parse(text, path, first_line=number)


def _json_list(path: Path) -> Iterator[Record]:
    text = _text_of(path)
    values = _parse(text, path, first_line=1) if text.strip() else []
    if not isinstance(values, list):
        what = f"The file must hold a list of rows, not {kind_of(values)}"
        raise DataError(what, where=str(path), do=JSONL_HINT)
    for number, value in enumerate(values, start=1):
        yield f"{path}, row {number}", value


def _csv_rows(path: Path) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_CELL)
    # io.StringIO would turn line ends inside of cells into "\n"; csv must see them as they are
    reader = csv.DictReader(_text_of(path).splitlines(keepends=True), restkey="", strict=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if "" in row or None in row.values():
                many = "more" if "" in row else "fewer"
                raise DataError(f"The row has {many} cells than the header has columns", where=where)
            yield where, row
    except csv.Error as error:
        # the row that begins after the last whole one
        raise DataError("Not valid CSV", where=f"{path}:{reader.line_num + 1}", why=str(error)) from None


def _parquet_rows(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", value
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError("The file is no parquet file that can be read", where=str(path), why=reason) from None


def _folder_records(folder: Path, *, subset: str | None, split: str) -> Iterator[Record]:
    import datasets

    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        found = _loaded(lambda: datasets.load_from_disk(str(folder)), str(folder))
        if isinstance(found, datasets.DatasetDict):
            if split not in found:
                raise _data_error(unknown_name("split", split, list(found), where=f"data.split, {folder}"))
            found = found[split]
    else:
        found = _loaded(lambda: datasets.load_dataset(str(folder), name=subset, split=split), str(folder))
    yield from _numbered(found, str(folder))


def hub_files(name: str, *, subset: str | None, split: str) -> list[Path]:
    """Return the files that hold a hub data set in the cache."""
    return sorted(Path(one["filename"]) for one in _hub_data(name, subset, split).cache_files)


def _hub_records(name: str, *, subset: str | None, split: str) -> Iterator[Record]:
    yield from _numbered(_hub_data(name, subset, split), name)


def _hub_data(name: str, subset: str | None, split: str) -> Any:
    import datasets

    return _loaded(lambda: datasets.load_dataset(name, name=subset, split=split), name)


def _loaded(load: Any, where: str) -> Any:
    """Call a loader of `datasets`, whose messages name unknown splits, subsets and missing files."""
    import datasets

    datasets.disable_progress_bars()
    try:
        return load()
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise DataError("The data set cannot be loaded", where=where, why=reason) from None


def _numbered(rows: Any, source: str) -> Iterator[Record]:
    for number, value in enumerate(rows, start=1):
        yield f"{source}, row {number}", value


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    return _decoded(data, path, 1)


def _decoded(data: bytes, path: Path, first_line: int) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first_line + data[: error.start].count(b"\n")
        raise DataError(
            "The data file is not UTF-8", where=f"{path}:{line}", why=error.reason, do="Save it as UTF-8"
        ) from None


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"The data file cannot be read: {error.strerror or error}", where=str(path))


def _parse(text: str, path: Path, *, first_line: int) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = first_line + getattr(error, "lineno", 1) - 1
        why = getattr(error, "msg", "nested too deeply")
        hint = JSONL_HINT if why == "Extra data" else ""
        raise DataError("Not valid JSON", where=f"{path}:{line}", why=why, do=hint) from None


def _data_error(error: UserError) -> DataError:
    return DataError(error.what, where=error.where, why=error.why, do=error.do)


def kind_of(value: Any) -> str:
    """Say in words what a JSON value is."""
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
