"""Is a file the one that was read before? And where what was read of it is remembered."""

from __future__ import annotations

import os
from pathlib import Path

SETTLED_S = 2.0
"""A file changed within this time may change again without a new time stamp, so it is not remembered."""


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


def identity(found: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from another and from itself at another time, in numbers that sqlite takes."""
    # sqlite's numbers are signed and have 64 bits; device numbers of some file systems use all of them
    device, inode = (
        number - (1 << 64) if number >= 1 << 63 else number for number in (found.st_dev, found.st_ino)
    )
    return device, inode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
