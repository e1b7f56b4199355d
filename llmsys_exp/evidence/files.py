"""Hash the files of a run: small ones at once, the rest beside the run, so that no start waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsys_exp.evidence.hashes import HashStore, Stopped

AT_ONCE_BYTES = 128 << 20
"""Of all files of a run together: a tenth of a second."""
THREADS = 4
NICE = 10
"""The run has the first say on cores and disks."""


@dataclass
class Hashed:
    """Files by what the record calls them, with their sizes, and hashes as they become known."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> `sha256` (None until it is known) and `bytes`."""
    waiting: dict[str, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def hash_at_once(files: Mapping[str, Path], store: HashStore, *, most_bytes: int = AT_ONCE_BYTES) -> Hashed:
    """Hash the small files and look the others up; what is left waits for `Hashing`."""
    found, left = Hashed(), most_bytes
    for name, file in files.items():
        try:
            size = file.stat().st_size
            digest = store.known(file) if size else None
            if digest is None and size <= left:
                digest, left = store.hash_of(file), left - size
        except OSError as error:
            found.problems.append(f"{file}: {error.strerror or error}")
            found.facts[name] = {"sha256": None, "bytes": None}
            continue
        found.facts[name] = {"sha256": digest, "bytes": size}
        if digest is None:
            found.waiting[name] = file
    return found


class Hashing:
    """Hashes large files in threads of low priority while the run goes on."""

    def __init__(self, store: HashStore, on_done: Callable[[], None]) -> None:
        """Start nothing yet; `on_done` is called, in a thread, when all that was added is hashed."""
        self._store, self._on_done, self._stop = store, on_done, threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="hash", initializer=_step_back)
        self._added: list[Hashed] = []
        self._futures: list[Future[None]] = []

    def close(self) -> None:
        """Give up what is not hashed yet."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, files: Hashed) -> None:
        """Take over what is waiting."""
        self._added.append(files)
        for name, file in list(files.waiting.items()):
            self._futures.append(self._pool.submit(self._hash, files, name, file))

    def finish(self, timeout_s: float) -> bool:
        """Wait for what is not hashed yet; return whether all is, by then."""
        wait(self._futures, timeout=timeout_s)
        return not any(files.waiting for files in self._added)

    def _hash(self, files: Hashed, name: str, file: Path) -> None:
        try:
            files.facts[name]["sha256"] = self._store.hash_of(file, self._stop)
        except Stopped:
            return
        except OSError as error:
            files.problems.append(f"{file}: {error.strerror or error}")
        del files.waiting[name]
        if not any(one.waiting for one in self._added):
            self._on_done()


def _step_back() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
