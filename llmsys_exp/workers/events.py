"""Event lines: what a worker tells its parent on standard output (see docs/design/worker-protocol.md)."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

MARKER = "@llmsys "


_now = {"phase": ""}


def current_phase() -> str:
    """Return the name of the last phase that began, on this rank."""
    return _now["phase"]


def phase(name: str) -> None:
    """Say which part of the work begins."""
    _now["phase"] = name
    _emit({"event": "phase", "name": name})


def progress(name: str, done: int, total: int, *, unit: str, **shown: float) -> None:
    """Move the bar called `name`; further figures are shown beside it."""
    figures = {key: value for key, value in shown.items() if value is not None}
    _emit({"event": "progress", "name": name, "done": done, "total": total, "unit": unit, **figures})


def result(name: str, **figures: Any) -> None:
    """Tell what came out of a part of the work, such as an evaluation."""
    _emit({"event": "result", "name": name, **figures})


def note(text: str) -> None:
    """Tell the user something that is worth a line and stops nothing."""
    _emit({"event": "note", "text": text})


def stoppable(pid: int) -> None:
    """Say which process to send SIGTERM to for a checkpoint and an end; 0: none any more."""
    _emit({"event": "stoppable", "pid": pid, "host": socket.gethostname()})


def done(folder: str, *, code: int) -> None:
    """Tell that a run folder is done with, by a worker that waits for the next one."""
    _emit({"event": "done", "folder": folder, "code": code})


def error(kind: str, text: str, *, code: int, **details: Any) -> None:
    """Tell the user why the worker ends, and with which code: a launcher may end with another.

    Comes from any rank, as only one of them may have failed.
    """
    event = {"event": "error", "kind": kind, "text": text, "code": code, **details}
    _emit(event, from_any_rank=True)


def _emit(event: dict[str, Any], *, from_any_rank: bool = False) -> None:
    if from_any_rank or os.environ.get("RANK", "0") == "0":
        # one write for a line: ranks share the pipe
        sys.stdout.write(f"{MARKER}{json.dumps(event, ensure_ascii=False)}\n")
        sys.stdout.flush()
