"""Processes of points: which is which although numbers are used again, and how all of one are ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

TAG = "LLMSYS_SWEEP_POINT"
"""Variable that names the point; everything that its command starts inherits it."""


def tag_of(sweep: str, number: int) -> dict[str, str]:
    """Return what to add to the environment of a point's command."""
    return {TAG: f"{sweep}/{number}"}


def identity(pid: int | None = None) -> dict[str, Any]:
    """Return what tells a process from all others: number, start, machine and boot."""
    pid = pid or os.getpid()
    return {"pid": pid, "born": _born(pid), "host": socket.gethostname(), "boot": _boot()}


def is_alive(who: Mapping[str, Any]) -> bool | None:
    """Return whether the process of an `identity` still runs; None where it is another machine's."""
    if who.get("host") != socket.gethostname():
        return None
    return bool(who.get("born")) and who.get("boot") == _boot() and _born(int(who["pid"])) == who["born"]


def ask(who: Mapping[str, Any]) -> None:
    """Ask a process to end, if it still is the one."""
    if is_alive(who):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(who["pid"]), signal.SIGTERM)


def end_point(sweep: str, number: int) -> int:
    """End at once everything that a point's command has started; return how many processes that were."""
    wanted, ended = tag_of(sweep, number)[TAG], 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(TAG) == wanted:
                process.kill()
                ended += 1
    return ended


def _born(pid: int) -> int:
    """Return when a process was started, in ticks since boot; 0 where there is none, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(rest[18])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
