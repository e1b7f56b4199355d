"""Tokenised examples on disk, a file for each fingerprint: whole or absent, checked, shared by processes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.workers.data.example import Examples
from llmsys_exp.workers.data.rows import Row

VERSION = 1
"""Goes up when the same settings give other tokens than before."""


@dataclass(frozen=True)
class Tokenised:
    """Examples, and what is told of how they came about."""

    examples: Examples
    told: dict[str, Any]


def cached(file: Path, make: Callable[[], Tokenised]) -> tuple[Tokenised, str]:
    """Read the file, or make its content and write it; return the content, and a note or an empty text.

    Of several processes one does the work and the others wait for its file. A broken file is made again;
    where nothing can be written, the run goes on without.
    """
    from filelock import FileLock

    made = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            found = _read(file)
            if found is not None:
                return found, ""
            note = f"The cache file {file} was broken and made anew." if file.exists() else ""
            made = make()
            _write(file, made)
            return made, note
    except OSError as error:
        # a full or read-only disk; what cannot be read of the data is a DataError
        return made or make(), f"Tokenised rows were not kept in {file.parent}: {error.strerror or error}."


def _read(file: Path) -> Tokenised | None:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="numpy") as stored:
            told = json.loads(stored.metadata()["told"])
            ids, learnt, starts, rows = map(stored.get_tensor, ("ids", "learnt", "starts", "rows"))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
    if told.pop("crc32") != _checksum(ids, learnt, starts, rows):
        return None
    kept = [Row(**row) for row in json.loads(rows.tobytes())] if len(rows) else None
    return Tokenised(Examples(ids, learnt, starts, kept), told)


def _write(file: Path, made: Tokenised) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    examples = made.examples
    text = json.dumps([asdict(row) for row in examples.rows]) if examples.rows else ""
    arrays = {
        "ids": examples.ids,
        "learnt": examples.learnt,
        "starts": examples.starts,
        "rows": np.frombuffer(text.encode(), dtype=np.uint8),
    }
    told = json.dumps(made.told | {"crc32": _checksum(*arrays.values())})
    with _whole(file) as partial:
        save_file(arrays, str(partial), metadata={"told": told})


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _checksum(*arrays: Any) -> int:
    found = 0
    for one in arrays:
        found = zlib.crc32(one.tobytes(), found)
    return found
