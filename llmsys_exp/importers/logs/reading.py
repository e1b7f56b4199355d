"""Finds out what a log is, reads it as a stream, and gives it one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from llmsys_exp.errors import UserError
from llmsys_exp.importers.logs import deepspeed_chat, trainer_log, trainer_state
from llmsys_exp.importers.logs.lines import read_lines
from llmsys_exp.importers.logs.logged import LoggedRun

LOGS = {
    "trainer_log": "LLaMA-Factory's trainer_log.jsonl: a JSON object a line, with current_steps",
    "trainer_state": "transformers' trainer_state.json: log_history",
    "deepspeed_chat": "DeepSpeed-Chat's training.log: lines `Epoch: 0, Step: 0, Rank: 0, loss = ...` or "
    "`ppl: ..., loss: ...`",
}
"""Format -> what it is known by."""
STATE = "trainer_state.json"
_FIRST_LINES = 20_000


def read_log(path: Path | str) -> LoggedRun:
    """Read the logged values of another tool's run: a log file, or the output folder of a Trainer.

    Raises:
        UserError: when there is no such file, it is none of `LOGS`, or it holds no loss.
    """
    file = _file(Path(path).expanduser().absolute())
    reader = _reader(file)
    run = reader(file)
    if not run.steps and not run.evaluation:
        raise UserError("The log holds no loss", where=str(file), do="Give the log of a run that has trained")
    return run


def _file(path: Path) -> Path:
    if not path.exists():
        raise UserError("There is no such log", where=str(path))
    if path.is_file():
        return path
    if not path.is_dir():  # a pipe or a device might never end
        raise UserError("The log is no regular file", where=str(path))
    found = next(_in_folder(path), None)
    if found is None:
        names = "trainer_state.json, trainer_log.jsonl, checkpoint-*/trainer_state.json or training.log"
        raise UserError("The folder holds no log", where=str(path), why=f"Looked for {names}")
    return found


def _in_folder(folder: Path) -> Iterator[Path]:
    """A Trainer writes its state at the end and with each checkpoint; the highest number tells most."""
    names = [folder / STATE, folder / "trainer_log.jsonl"]
    candidates = [*names, *states_in(folder), folder / "training.log"]
    return (one for one in candidates if one.is_file())


def states_in(folder: Path) -> list[Path]:
    """Return the states of a Trainer's folder: its own, then those of its checkpoints, newest first."""
    own = [folder / STATE] if (folder / STATE).is_file() else []
    saved = [one for one in folder.glob(f"checkpoint-*/{STATE}") if _number(one) >= 0]
    return [*own, *sorted(saved, key=_number, reverse=True)]


def _number(path: Path) -> int:
    text = path.parent.name.rpartition("-")[2]
    return int(text) if text.isdigit() else -1


def _reader(file: Path) -> Callable[[Path], LoggedRun]:
    for number, line in enumerate(read_lines(file)):
        text = line.strip()
        if number == 0 and text.startswith("{") and "current_steps" not in text:
            return trainer_state.read
        if text.startswith("{") and '"current_steps"' in text:
            return trainer_log.read
        if deepspeed_chat.is_own(text):
            return deepspeed_chat.read
        if number >= _FIRST_LINES:
            break
    raise UserError(
        "The log is of no known kind", where=str(file), why="Looked for " + "; ".join(LOGS.values())
    )
