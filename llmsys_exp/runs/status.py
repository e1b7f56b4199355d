"""The state of a run folder: complete, running, stopped or failed, from what the folder itself tells."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmsys_exp.errors import JobError, UserError
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.runs.migrate import has_manifest
from llmsys_exp.runs.paths import RunPaths

COMPLETE, RUNNING, STOPPED, FAILED = "complete", "running", "stopped", "failed"


@contextmanager
def recorded(paths: RunPaths) -> Iterator[None]:
    """Write down how the work in a run folder ends where it does not end well.

    A run that goes on has no end yet: what an earlier one left is removed first.
    """
    paths.status.unlink(missing_ok=True)
    try:
        yield
    except KeyboardInterrupt:
        _write(paths, STOPPED, kind="interrupted")
        raise
    except UserError as error:
        kind = error.kind if isinstance(error, JobError) else "user"
        _write(paths, STOPPED if kind == STOPPED else FAILED, kind=kind, text=error.what)
        raise
    except Exception as error:
        _write(paths, FAILED, kind="bug", text=f"{type(error).__name__}: {error}")
        raise


def state_of(paths: RunPaths) -> str:
    """Return `complete`, `running`, `stopped` or `failed (kind)`.

    A run without a word about its end, and with nobody working on it, was killed: it counts as stopped.
    """
    if has_manifest(paths):
        return COMPLETE
    if is_held(paths.lock) or is_held(paths.worker_lock):
        return RUNNING
    left = read_json(paths.status)
    if isinstance(left, dict) and left.get("state") == FAILED:
        return f"{FAILED} ({left.get('kind', 'other')})"
    return STOPPED


def is_held(lock: Path) -> bool:
    """Return whether a process holds a lock of `runs.lock`."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # some network file systems have no locks
    finally:
        os.close(descriptor)
    return False


def _write(paths: RunPaths, state: str, *, kind: str, text: str = "") -> None:
    # the failure itself must reach the user, not that a full disk took no note of it
    with suppress(UserError, OSError):
        write_json(paths.status, {"state": state, "kind": kind, "text": text, "time": utc_now()})
