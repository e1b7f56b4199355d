"""Measured training rows that ship with the planner. Plain Python: environments of rivals read it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "planner/data/measured"
TRAINING = (
    "h200-training.jsonl",
    "h200-validation.jsonl",
    "h200-settings.jsonl",
    "h200-fresh.jsonl",
    "h200-grid.jsonl",
    "h200-coverage.jsonl",
)


def measured_rows() -> list[dict[str, Any]]:
    """Every training row, those that ran out of memory included, in the order of the files."""
    lines = (line for name in TRAINING for line in (FOLDER / name).read_text(encoding="utf-8").splitlines())
    return [json.loads(line) for line in lines]
