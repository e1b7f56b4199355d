"""transformers' `trainer_state.json`: `log_history` of the run that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.importers.logs.lines import MOST_ROWS, kept_note
from llmsys_exp.importers.logs.logged import LoggedRun, interval, is_number, whole
from llmsys_exp.importers.logs.state_file import read_state

COLUMNS = ("learning_rate", "grad_norm", "epoch")


def read(file: Path) -> LoggedRun:
    """Read the losses, the evaluations and the wall time.

    Raises:
        UserError: when the file is no state of a Trainer.
    """
    state = read_state(file)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise UserError("The file has no log_history", where=str(file), do="Give a trainer_state.json")
    steps: list[dict[str, Any]] = []
    evaluation: list[dict[str, Any]] = []
    seconds = None
    for entry in history[:MOST_ROWS]:
        if not isinstance(entry, dict):
            continue
        if is_number(entry.get("loss")):
            steps.append({"step": _step(entry), "loss": float(entry["loss"]), **_others(entry)})
        elif is_number(entry.get("eval_loss")):
            evaluation.append({"step": _step(entry), "loss": float(entry["eval_loss"]), **_others(entry)})
        elif is_number(entry.get("train_runtime")):
            seconds = float(entry["train_runtime"])
    mean = whole(state.get("logging_steps")) or interval(steps)
    total = whole(state.get("max_steps")) or None
    notes = kept_note(len(history) > MOST_ROWS)
    return LoggedRun(steps, evaluation, file, "trainer_state", mean, total, seconds, notes)


def _step(entry: dict[str, Any]) -> int:
    return whole(entry.get("step")) or 0


def _others(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: float(entry[key]) for key in COLUMNS if is_number(entry.get(key))}
