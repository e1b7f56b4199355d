"""SHA-256 of files, remembered between runs: one whose identity, size and times stayed is not read again.

The store lies in the user's cache folder and is shared by processes; without it every file is read again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event

from llmsys_exp.runs.files import file_blocks

STORE = "file-hashes-1.sqlite"
SETTLED_S = 2.0
"""A file changed within this time may change again without a new time stamp, so it is not remembered."""
WAIT_S = 2.0
_TABLE = (
    "create table if not exists hashes (device integer, inode integer, bytes integer, modified integer, "
    "changed integer, sha256 text, primary key (device, inode)) without rowid"
)
_KEEP = "insert or replace into hashes values (?,?,?,?,?,?)"
_FIND = "select sha256 from hashes where device=? and inode=? and bytes=? and modified=? and changed=?"


class Stopped(Exception):
    """The hash is not needed any more."""


def user_cache() -> Path:
    """Return the user's own cache folder for llmsys.

    Raises:
        OSError: for a user without a home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "llmsys"
    except RuntimeError as error:
        raise OSError(str(error)) from error


class HashStore:
    """Hashes of files by device, inode, size and times."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def known(self, file: Path) -> str | None:
        """Return the hash of a file that is as it was when it was hashed; None where that is not known."""
        found = None
        with suppress(OSError, sqlite3.Error), self._open() as store:
            found = store.execute(_FIND, _identity(file.stat())).fetchone()
        return found[0] if found else None

    def hash_of(self, file: Path, stop: Event | None = None) -> str:
        """Return the hash of a file, and remember it.

        Raises:
            OSError: when the file cannot be read.
            Stopped: when `stop` was set meanwhile.
        """
        known = self.known(file)
        if known is not None:
            return known
        before = file.stat()
        digest = _hash(file, stop)
        after = file.stat()
        if _identity(before) == _identity(after) and time.time() - before.st_mtime > SETTLED_S:
            with suppress(OSError, sqlite3.Error), self._open() as store, store:
                store.execute(_KEEP, (*_identity(after), digest))
        return digest

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        folder = self._folder or user_cache()
        folder.mkdir(parents=True, exist_ok=True)
        # one a call: threads and forks must not share a connection
        with closing(sqlite3.connect(folder / STORE, timeout=WAIT_S)) as store:
            store.execute("pragma synchronous=off")  # what a power cut takes is hashed again
            store.execute(_TABLE)
            yield store


def _hash(file: Path, stop: Event | None) -> str:
    digest = hashlib.sha256()
    for block in file_blocks(file):
        if stop is not None and stop.is_set():
            raise Stopped
        digest.update(block)
    return digest.hexdigest()


def _identity(found: os.stat_result) -> tuple[int, ...]:
    # sqlite's numbers are signed and have 64 bits; device numbers of some file systems use all of them
    device, inode = (
        number - (1 << 64) if number >= 1 << 63 else number for number in (found.st_dev, found.st_ino)
    )
    return device, inode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
