"""SHA-256 of files, remembered between runs: one whose identity, size and times stayed is not read again.

The store lies in the user's cache folder and is shared by processes; without it every file is read again.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event

from llmsys_exp.runs.files import file_blocks
from llmsys_exp.runs.unchanged import SETTLED_S, identity, user_cache

STORE = "file-hashes-1.sqlite"
WAIT_S = 2.0
_TABLE = (
    "create table if not exists hashes (device integer, inode integer, bytes integer, modified integer, "
    "changed integer, sha256 text, primary key (device, inode)) without rowid"
)
_KEEP = "insert or replace into hashes values (?,?,?,?,?,?)"
_FIND = "select sha256 from hashes where device=? and inode=? and bytes=? and modified=? and changed=?"


class Stopped(Exception):
    """The hash is not needed any more."""


class HashStore:
    """Hashes of files by device, inode, size and times."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def known(self, file: Path) -> str | None:
        """Return the hash of a file that is as it was when it was hashed; None where that is not known."""
        found = None
        with suppress(OSError, sqlite3.Error), self._open() as store:
            found = store.execute(_FIND, identity(file.stat())).fetchone()
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
        if identity(before) == identity(after) and time.time() - before.st_mtime > SETTLED_S:
            with suppress(OSError, sqlite3.Error), self._open() as store, store:
                store.execute(_KEEP, (*identity(after), digest))
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
