"""metrics.jsonl of a run that goes on: cut back to the checkpoint, so that no step stands in it twice."""

from __future__ import annotations

import json
from pathlib import Path

from llmsys_exp.runs.files import publish


def cut_back(metrics: Path, dropped: Path, *, step: int) -> int:
    """Keep lines up to a step and move later ones to `dropped`; return how many were moved.

    A line that a kill cut short is neither.
    """
    if not metrics.is_file():
        return 0
    kept, later = [], []
    for line in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            number = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
        (kept if number <= step else later).append(line + "\n")
    if later:
        with dropped.open("a", encoding="utf-8") as stream:
            stream.writelines(later)
    publish(metrics, "".join(kept).encode())
    return len(later)
