"""LLaMA-Factory's `trainer_log.jsonl`: an object a line, as its `LogCallback` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmsys_exp.importers.logs.lines import MOST_ROWS, kept_note, read_lines
from llmsys_exp.importers.logs.logged import LoggedRun, interval, is_number, whole

COLUMNS = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
}


def read(file: Path) -> LoggedRun:
    """Read the last run of the file; LLaMA-Factory appends a run to what an earlier one left there."""
    steps: list[dict[str, Any]] = []
    evaluation: list[dict[str, Any]] = []
    total, last, earlier, broken, more = None, 0, False, 0, False
    for line in read_lines(file):
        entry = _entry(line)
        if entry is None:
            broken += bool(line.strip())
            continue
        step = int(entry["current_steps"])
        if step < last:
            steps, evaluation, earlier, more = [], [], True, False
        last, total = step, entry.get("total_steps", total)
        if len(steps) >= MOST_ROWS:
            more = True
        elif is_number(entry.get("loss")):
            steps.append({"step": step, "loss": float(entry["loss"]), **_others(entry)})
        elif is_number(entry.get("eval_loss")):
            evaluation.append({"step": step, "loss": float(entry["eval_loss"]), **_others(entry)})
    notes = [*kept_note(more)]
    if earlier:
        notes.append("the file holds more than one run; the last one counts")
    if broken:
        notes.append(f"{broken} lines are no JSON and were passed over")
    return LoggedRun(
        steps, evaluation, file, "trainer_log", interval(steps), whole(total), None, tuple(notes)
    )


def _entry(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and whole(found.get("current_steps")) is not None else None


def _others(entry: dict[str, Any]) -> dict[str, Any]:
    return {ours: float(entry[key]) for key, ours in COLUMNS.items() if is_number(entry.get(key))}
