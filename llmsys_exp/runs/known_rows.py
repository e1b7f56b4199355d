"""What the list said of complete runs before: of thousands it does not read every manifest again.

A row is used again only for the very file it was read from: the same inode, length and times. What changed
within a moment of being read is not kept, as the times of the next change could be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmsys_exp.runs.files import publish, read_json
from llmsys_exp.runs.manifest import SCHEMA_VERSION
from llmsys_exp.runs.unchanged import SETTLED_S, identity, user_cache

VERSION = 1
"""To be raised with every change of what a row says of the same manifest."""
WORTH_KEEPING = 100
"""Fewer manifests are read in a moment; no file is written for them."""
_FORM = f"{VERSION}.{SCHEMA_VERSION}"


class KnownRows:
    """Rows by manifest, for one folder of runs."""

    def __init__(self, outputs: Path, folder: Path | None = None) -> None:
        """Read what is kept.

        Args:
            outputs: where the runs are.
            folder: where rows are kept. None: the cache of this user.
        """
        name = hashlib.sha256(os.fsencode(outputs.absolute())).hexdigest()[:24]
        self._file: Path | None = None
        with suppress(OSError):
            self._file = (folder or user_cache()) / f"rows-{name}.json"
        kept = read_json(self._file) if self._file else None
        rows = kept.get("rows") if isinstance(kept, dict) and kept.get("form") == _FORM else None
        self._rows: dict[str, Any] = rows if isinstance(rows, dict) else {}
        self._new = 0

    def find(self, manifest: Path) -> dict[str, Any] | None:
        """Return the row that was read from just this file; None where it has to be read."""
        mark = _mark(manifest)
        row = self._rows.get(str(manifest))
        return row["row"] if mark is not None and isinstance(row, dict) and row.get("mark") == mark else None

    def mark(self, manifest: Path) -> list[int] | None:
        """Return what tells the file as it is from any later one; None where it is absent or too young.

        To be asked before it is read.
        """
        mark = _mark(manifest)
        return None if mark is None or time.time() - max(mark[-2:]) / 1e9 < SETTLED_S else mark

    def keep(self, manifest: Path, mark: list[int], row: dict[str, Any]) -> None:
        """Remember a row that was read after the mark was taken."""
        self._rows[str(manifest)] = {"mark": mark, "row": row}
        self._new += 1

    def save(self, manifests: Iterable[Path]) -> None:
        """Write down the rows of these files, where it is worth it; a disk that refuses costs only time."""
        if self._file is None or self._new < WORTH_KEEPING:
            return
        there = set(map(str, manifests))
        rows = {name: row for name, row in self._rows.items() if name in there}
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            publish(self._file, json.dumps({"form": _FORM, "rows": rows}).encode())


def _mark(manifest: Path) -> list[int] | None:
    try:
        return list(identity(manifest.stat()))
    except OSError:
        return None
