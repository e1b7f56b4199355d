"""Find run folders, and say in one row each what came out; a folder is read when something of it is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from llmsys_exp.runs.folder import TIME_FORMAT
from llmsys_exp.runs.known_rows import KnownRows
from llmsys_exp.runs.migrate import find_manifest
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import COMPLETE, state_of
from llmsys_exp.runs.told import Told, group, read_told

_TIME_SIGNS = len("2026-01-02_12-00-00")
OF_MANIFEST = ("steps", "started", "loss", "score", "peak_bytes", "seconds")
"""What a row says of a complete run by its manifest alone."""


@dataclass(frozen=True)
class RunRow:
    """One run folder."""

    name: str
    id: str
    """`NAME/FOLDER`."""
    folder: str
    state: str
    """`complete`, `running`, `stopped` or `failed (kind)`, see `runs.status`."""
    steps: list[str]
    started: str | None
    """UTC, ISO 8601; None where the run told nothing at its start."""
    loss: float | None
    score: float | None
    peak_bytes: int | None
    seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class FoundRun:
    """A run folder. Of what is read only the row is kept: thousands of records would not be small."""

    paths: RunPaths
    known: KnownRows | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.paths.folder.parent.name

    @property
    def id(self) -> str:
        """`NAME/FOLDER`, as the folder is called now."""
        return f"{self.paths.folder.parent.name}/{self.paths.folder.name}"

    @cached_property
    def time(self) -> datetime:
        """When it began, in local time: by the name of its folder, else by its oldest file."""
        try:
            return datetime.strptime(self.paths.folder.name[:_TIME_SIGNS], TIME_FORMAT)
        except ValueError:
            return datetime.fromtimestamp(_modified(self.paths.job) or _modified(self.paths.start))

    @property
    def state(self) -> str:
        """See `runs.status.state_of`."""
        return self.row.state

    @cached_property
    def row(self) -> RunRow:
        """What the list says of it."""
        if self.known is None:
            return self._read_row()
        manifest = self.paths.manifest
        kept = self.known.find(manifest)
        if kept is not None:
            return RunRow(name=self.name, id=self.id, folder=str(self.paths.folder), state=COMPLETE, **kept)
        mark = self.known.mark(manifest)
        row = self._read_row()
        if mark is not None and row.state == COMPLETE:
            self.known.keep(manifest, mark, {key: getattr(row, key) for key in OF_MANIFEST})
        return row

    def read(self) -> Told:
        """Read what it tells; of a complete run without job.json, which takes time and says nothing more."""
        manifest = find_manifest(self.paths.manifest)
        whole = None if manifest is None else Told(self.paths, manifest, True, {})
        told = whole or read_told(self.paths.folder)
        if "row" not in self.__dict__:
            self.__dict__["row"] = self._row_of(told)
        return told

    def _read_row(self) -> RunRow:
        self.read()
        return self.__dict__["row"]

    def _row_of(self, told: Told) -> RunRow:
        """Return the row of what was read."""
        record, steps = told.record, told.group("config").get("steps")
        started = record["started"]
        return RunRow(
            name=self.name,
            id=self.id,
            folder=str(self.paths.folder),
            state=COMPLETE if told.complete else state_of(self.paths),
            steps=[str(one) for one in steps] if isinstance(steps, list) else [],
            started=started if isinstance(started, str) else None,
            loss=_figure(record, "metrics", "after", "loss"),
            score=_figure(record, "metrics", "after", "score"),
            peak_bytes=_figure(record, "measured", "peak_bytes"),
            seconds=_figure(record, "timing_s", "total"),
        )


def find_runs(outputs: Path, known: KnownRows | None = None) -> list[FoundRun]:
    """Return the runs below `outputs`, or below the folder of one experiment, oldest first; none is read.

    Args:
        outputs: a folder.
        known: rows that were read before.
    """
    folders = [*_folders(outputs), *(one for name in _folders(outputs) for one in _folders(name))]
    runs = [FoundRun(RunPaths(folder.absolute()), known) for folder in folders]
    found = [run for run in runs if run.paths.is_run]
    return sorted(found, key=lambda run: (run.time, run.paths.folder.name))


def list_runs(outputs: Path) -> list[RunRow]:
    """Return a row of every run below `outputs`, oldest first."""
    return [run.row for run in find_runs(outputs)]


def _folders(above: Path) -> Iterator[Path]:
    """Yield the folders in a folder; hidden ones are half-removed or nobody's run."""
    try:
        with os.scandir(above) as entries:
            yield from [above / one.name for one in entries if not one.name.startswith(".") and one.is_dir()]
    except OSError:
        return


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _figure(content: Any, *path: str) -> Any:
    """Follow a path of keys to a number; None where a manifest, perhaps edited by hand, has none."""
    value = group(content, *path[:-1]).get(path[-1])
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
