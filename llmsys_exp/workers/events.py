"""Event lines: what a worker tells its parent on standard output (see docs/design/worker-protocol.md)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MARKER = "@llmsys "


def phase(name: str) -> None:
    """Say which part of the work begins."""
    _emit({"event": "phase", "name": name})


def progress(name: str, done: int, total: int, *, unit: str, **shown: float) -> None:
    """Move the bar called `name`; further figures are shown beside it."""
    figures = {key: value for key, value in shown.items() if value is not None}
    _emit({"event": "progress", "name": name, "done": done, "total": total, "unit": unit, **figures})


def note(text: str) -> None:
    """Tell the user something that is worth a line and stops nothing."""
    _emit({"event": "note", "text": text})


def error(kind: str, text: str) -> None:
    """Tell the user why the worker ends. Comes from any rank, as only one of them may have failed."""
    _emit({"event": "error", "kind": kind, "text": text}, from_any_rank=True)


def _emit(event: dict[str, Any], *, from_any_rank: bool = False) -> None:
    if from_any_rank or os.environ.get("RANK", "0") == "0":
        # one write for a line: ranks share the pipe
        sys.stdout.write(f"{MARKER}{json.dumps(event, ensure_ascii=False)}\n")
        sys.stdout.flush()
