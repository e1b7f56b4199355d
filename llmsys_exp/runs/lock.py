"""One worker, one command a run folder: a lock that the kernel lets go of however its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors


class StillHeld(UserError):
    """Another process holds the lock."""


_LOOKS, _LOOK_S = 10, 0.01


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run folder.

    Raises:
        StillHeld: when another process holds it.
    """
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            _take(descriptor)
        except BlockingIOError:
            raise _held(path) from None
        except OSError:
            pass  # some network file systems have no locks
        with disk_errors(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    """Take the lock; who only looks whether it is held (`status.is_held`) has it for a moment, too."""
    for _ in range(_LOOKS):
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOOK_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_free(path: Path) -> None:
    """Refuse when another process holds the lock.

    Raises:
        UserError: naming it.
    """
    if path.exists():
        with locked(path):
            pass


def _held(path: Path) -> StillHeld:
    try:
        holder = path.read_text(encoding="utf-8").strip()
    except OSError:
        holder = ""
    return StillHeld(
        "This run is still going" + (f": process {holder} works on it" if holder else ""),
        where=str(path.parent),
        why="Two processes in one run folder would overwrite each other's files",
        do="Wait for it or stop it first",
    )
