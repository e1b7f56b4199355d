"""How much of the disk a folder takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 512
"""What `st_blocks` counts, whatever the file system."""


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes; links are not followed, a file of several names counts once."""
    files = {(found.st_dev, found.st_ino): found.st_blocks * _BLOCK_BYTES for found in _files(str(folder))}
    return sum(files.values())


def _files(folder: str) -> Iterator[os.stat_result]:
    try:
        with os.scandir(folder) as entries:
            for one in entries:
                try:
                    yield one.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if one.is_dir(follow_symlinks=False):
                    yield from _files(one.path)
    except OSError:
        return
