"""The ledger of a sweep: what happened to each point, in one file that only grows and survives any kill.

A line is written with one call, under a lock, and only if the state of its point allows it. So of two
processes that want to start the same point one is told no, and a point that is done is never left.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.sweeps.ledger.lines import decode, encode

VERSION = 1
PLANNED, SKIPPED, RUNNING, DONE, FAILED, LOST = "planned", "skipped", "running", "done", "failed", "lost"
PRUNED = "pruned"
"""A search stopped it because others were better at that step; it is finished."""
STATES = (PLANNED, SKIPPED, RUNNING, DONE, PRUNED, FAILED, LOST)

_FROM = {
    PLANNED: (SKIPPED, FAILED, LOST),
    SKIPPED: (PLANNED,),
    RUNNING: (PLANNED, LOST),
    DONE: (RUNNING, LOST),
    PRUNED: (RUNNING,),
    FAILED: (RUNNING,),
    LOST: (RUNNING,),
}
"""State -> those that it may follow. Nothing follows `done` and `pruned`."""
_NOT_TOLD = ("v", "point", "state", "set", "added")


@dataclass
class PointState:
    """What the ledger says of one point now."""

    number: int
    state: str = PLANNED
    attempt: int = 0
    """How often it was started."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Everything told of the newest attempt, later words in place of earlier ones."""
    overrides: tuple[str, ...] = ()
    """Settings that a retry has added to the point's own."""

    def take(self, entry: dict[str, Any]) -> None:
        """Take in an entry of this point."""
        state = entry["state"]
        if state == RUNNING and self.state != RUNNING:
            self.attempt += 1
            self.fields = {}
        elif state == PLANNED:
            # what is known of the attempt before is where it lies
            self.fields = {key: value for key, value in self.fields.items() if key == "folder"}
        told = {key: value for key, value in entry.items() if key not in _NOT_TOLD}
        self.state = state
        self.fields |= {"since" if key == "t" else key: value for key, value in told.items()}
        self.overrides = (*self.overrides, *entry.get("set", ()))


class Ledger:
    """One process's view of a ledger; read on with `refresh`, written to with `move`."""

    def __init__(self, path: Path, sweep: str, points: int) -> None:
        """Open a ledger; the file need not be there yet.

        Args:
            path: the file.
            sweep: identity of the sweep, written in its first line.
            points: how many points the sweep has, numbered from 1.
        """
        self.path, self.sweep = path, sweep
        self.asked: str | None = None
        """Fingerprint of `sweep.json`, for the first line of a new ledger."""
        self._points = points
        self._forget()

    def states(self) -> dict[int, PointState]:
        """Return what is known of each point, by number.

        Raises:
            UserError: for a ledger that is damaged, of another sweep, of a later llmsys, or cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._states
        except OSError as error:
            raise UserError(
                "Cannot read the ledger", where=str(self.path), why=error.strerror or ""
            ) from error
        try:
            self._read(descriptor)
        finally:
            os.close(descriptor)
        return self._states

    def move(self, point: int, state: str, *, attempt: int | None = None, **told: Any) -> bool:
        """Write that a point is in another state now, and return whether that could be.

        Args:
            point: its number.
            state: the new state; `running` again adds to what is told of a running point.
            attempt: for words about an attempt: refused where the point has been started again since.
            told: what else to write.
        """
        return self.move_all([(point, state, told)], attempt=attempt) == 1

    def move_all(
        self, moves: Sequence[tuple[int, str, dict[str, Any]]], *, attempt: int | None = None
    ) -> int:
        """Write several moves at once; return how many could be."""
        written = 0
        with self._locked() as descriptor:
            for point, state, told in moves:
                if not self._allows(point, state, attempt):
                    continue
                entry = {"v": VERSION, "t": utc_now(), "point": point, "state": state, **told}
                self._write(descriptor, entry)
                self._states[point].take(entry)
                written += 1
            if written:
                os.fdatasync(descriptor)
        return written

    def _allows(self, point: int, state: str, attempt: int | None) -> bool:
        now = self._states[point]
        if attempt is not None and (now.attempt != attempt or now.state != RUNNING):
            return False
        tells_more = state == RUNNING and now.state == RUNNING and attempt is not None
        return tells_more or now.state in _FROM[state]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the file for writing: read to its end, mended where its last line was cut."""
        with disk_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._read(descriptor)
                self._mend(descriptor)
                if self._good == 0:
                    asked = {} if self.asked is None else {"asked": self.asked}
                    self._write(descriptor, {"v": VERSION, "t": utc_now(), "sweep": self.sweep, **asked})
                    os.fdatasync(descriptor)  # a sweep whose ledger is empty is refused
                yield descriptor
            finally:
                os.close(descriptor)

    def _mend(self, descriptor: int) -> None:
        """Take away what stands behind the last whole line; what is taken is kept in a file beside."""
        rest = _read_from(descriptor, self._good)
        if not rest:
            return
        with self.path.with_name(f"{self.path.name}.cut").open("ab") as aside:
            aside.write(rest.rstrip(b"\n") + b"\n")
        os.ftruncate(descriptor, self._good)

    def _write(self, descriptor: int, entry: dict[str, Any]) -> None:
        line = encode(entry)
        size = os.write(descriptor, line)
        if size != len(line):
            os.ftruncate(descriptor, self._good)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._good += size
        self._lines += 1

    def _read(self, descriptor: int) -> None:
        """Take in the lines that came since; a last one that is cut or damaged is left for `_mend`."""
        if os.fstat(descriptor).st_size < self._good:
            self._forget()
        lines = _read_from(descriptor, self._good).split(b"\n")
        tail = lines.pop()
        for place, line in enumerate(lines):
            entry = decode(line)
            is_last = place == len(lines) - 1 and not tail
            if entry is None and is_last:
                return
            self._take(entry)
            self._good += len(line) + 1
            self._lines += 1

    def _take(self, entry: dict[str, Any] | None) -> None:
        where = f"{self.path}, line {self._lines + 1}"
        if entry is None:
            raise UserError(
                "The ledger is damaged",
                where=where,
                why="The line is not as it was written, so what it said of a point is unknown",
                do="Put the file back from a copy, or begin the sweep anew; finished runs stay as they are",
            )
        _check_version(entry, where)
        if "sweep" in entry:
            if entry["sweep"] != self.sweep:
                raise UserError(
                    f"This is the ledger of another sweep, {entry['sweep']}",
                    where=str(self.path),
                    do=f"Put the ledger of {self.sweep} back",
                )
            return
        state = self._states.get(entry.get("point", 0))
        if state is None or entry.get("state") not in STATES:
            raise UserError(
                f"The ledger tells of a point or state that this sweep does not have: {entry.get('point')}, "
                f"{entry.get('state')}",
                where=where,
                do="Look whether sweep.json beside it was changed",
            )
        state.take(entry)

    def _forget(self) -> None:
        self._good, self._lines = 0, 0
        self._states = {number: PointState(number) for number in range(1, self._points + 1)}


def _check_version(entry: dict[str, Any], where: str) -> None:
    version = entry.get("v")
    if version != VERSION:
        raise UserError(
            f"The ledger has version {version}, and this llmsys knows version {VERSION}",
            where=where,
            do="Use the llmsys that began this sweep, or a later one",
        )


def _read_from(descriptor: int, start: int) -> bytes:
    parts: list[bytes] = []
    while block := os.pread(descriptor, 1 << 20, start):
        parts.append(block)
        start += len(block)
    return b"".join(parts)
