"""Rows as files: refused before the work where they could not be written, whole or absent after it."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.report.plan_rows import SIZES, Row
from llmsys_exp.runs.files import partial_of, publish
from planner.units import GIB

_PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = {
    "--csv": (".csv",),
    "--parquet": (".parquet",),
    "--plot": _PICTURES,
    "-o": _PICTURES,
    "--snapshot": (".pickle",),
    "--timeline": _PICTURES,
}
NEEDS = {
    "--parquet": ("pandas", "pyarrow"),
    "--plot": ("matplotlib",),
    "-o": ("matplotlib",),
    "--timeline": ("matplotlib",),
}


def check_files(files: Mapping[str, Path], *, force: bool) -> None:
    """Refuse files that could not be written once the work is done.

    Args:
        files: flag -> file.
        force: whether existing files may be replaced.

    Raises:
        UserError: for the first that has an unknown suffix, no folder, no right to write, or exists.
    """
    for flag, path in files.items():
        shown = f"{flag} {path}"
        _check_suffix(flag, path, shown)
        _check_place(path, shown)
        if os.path.lexists(path) and not force:
            raise UserError(
                "This file exists", where=shown, do="Add --force to replace it, or choose another name"
            )
        _check_packages(flag)


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as flat dictionaries, all with the same keys; sizes in GiB."""
    keys = dict.fromkeys(key for row in rows for key in row["overrides"])
    settings = dict.fromkeys(key for row in rows for key in row["settings"])
    parts = dict.fromkeys(name for row in rows for name in row["components"])
    extra = dict.fromkeys(title for row in rows for title in row.get("extra", {}))
    return [
        {
            "point": row["point"],
            **{key: row["overrides"].get(key) for key in keys},
            "verdict": row["verdict"],
            **{key.replace("_bytes", "_gib"): _gib(row[key]) for key in SIZES},
            "largest": row["largest"],
            "largest_gib": _gib(row["largest_bytes"]),
            "fix": row["fix"],
            "error": row["error"],
            **{title: row.get("extra", {}).get(title) for title in extra},
            **{f"resolved.{key}": row["settings"].get(key) for key in settings},
            **{f"part.{name.replace(' ', '_')}_gib": _gib(row["components"].get(name)) for name in parts},
        }
        for row in rows
    ]


def csv_bytes(rows: Sequence[Row]) -> bytes:
    """Return rows of plans as CSV in UTF-8, with a header; what is not known is empty."""
    return flat_csv_bytes(flat_rows(rows))


def flat_csv_bytes(flat: Sequence[Mapping[str, Any]]) -> bytes:
    """Return flat rows, all with the same keys, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode()


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    """Return rows of plans as a parquet table."""
    return flat_parquet_bytes(flat_rows(rows))


def flat_parquet_bytes(flat: Sequence[Mapping[str, Any]]) -> bytes:
    """Return flat rows as a parquet table; a column of mixed kinds becomes text."""
    import pandas as pd

    frame = pd.DataFrame(list(flat))
    for name in frame.columns:
        kinds = {type(value) for value in frame[name].dropna()}
        if len(kinds) > 1 and not kinds <= {int, float}:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    data = io.BytesIO()
    frame.convert_dtypes().to_parquet(data, engine="pyarrow", index=False)
    return data.getvalue()


def write_whole(path: Path, data: bytes, *, force: bool = True) -> None:
    """Write a file under another name, then rename it; leave nothing behind when the disk refuses.

    Args:
        path: the file.
        data: its content.
        force: whether it may replace another.

    Raises:
        UserError: when it cannot be written, or another process was faster.
    """
    try:
        publish(path, data, overwrite=force)
    except FileExistsError as error:
        raise UserError(
            "This file has come meanwhile, and is left as it is",
            where=str(path),
            do="Add --force to replace it, or choose another name",
        ) from error
    except OSError as error:
        raise UserError(
            f"Cannot write: {error.strerror or error}",
            where=str(path),
            do="Free some space or name a file elsewhere; the file that was there, if any, is untouched",
        ) from error


def _check_suffix(flag: str, path: Path, shown: str) -> None:
    if path.suffix.lower() not in SUFFIXES[flag]:
        known = ", ".join(SUFFIXES[flag])
        raise UserError(
            f"{flag} does not write {path.suffix or 'a file without suffix'}", where=shown, do=f"Use {known}"
        )


def _check_packages(flag: str) -> None:
    # Imported, not looked up: what is broken must show before the work, too.
    for name in NEEDS.get(flag, ()):
        try:
            import_module(name)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            raise UserError(
                f"{flag} needs {name}, which {'is not installed' if missing else 'cannot be imported'}",
                why="" if missing else str(error),
                do=f"pip install {name}, or leave {flag} out",
            ) from error


def _check_place(path: Path, shown: str) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise UserError("There is no such folder", where=shown, do=f"mkdir -p {folder}")
    if path.is_dir():
        raise UserError("This is a folder", where=shown, do="Name a file")
    # Rights alone do not tell: the file system may be read-only, the name too long.
    trial = partial_of(path)
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UserError(
            f"Cannot write here: {error.strerror or error}", where=shown, do="Name a file elsewhere"
        ) from error


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / GIB, 4)
