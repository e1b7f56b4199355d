"""The journal of answers: a line each as they finish, taken up again by a second start."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.workers.engines.base import ABORT
from llmsys_exp.workers.files import write_json

Answer = dict[str, Any]
NAMES = {
    "prompts": "the prompts, their order in the file, or their template",
    "sampling": "sampling or seed",
    "model": "the model",
    "engine": "the engine",
}


class Journal:
    """generations.jsonl: append-only, flushed line by line: a kill loses what was in flight at most."""

    def __init__(self, paths: RunPaths, key: Mapping[str, str]) -> None:
        """Take up what an earlier start left.

        Args:
            paths: of the run.
            key: hashes over all that an answer depends on, by the names of `NAMES`.

        Raises:
            UserError: where the journal's answers are to other questions than these.
        """
        self._path = paths.generations
        known = _stored(paths.journal_key)
        self.answers: dict[int, Answer] = {}
        """Finished ones, by place in the prompt file."""
        if self._path.exists() and self._path.stat().st_size:
            _check_same(known, key, self._path)
            self.answers = _read(self._path)
        with disk_errors(paths.journal_key):
            write_json(paths.journal_key, dict(key))
        self.resumed = len(self.answers)
        self.seconds = max((one.get("done_s") or 0.0 for one in self.answers.values()), default=0.0)
        """Time that earlier starts spent on answers that are kept."""
        self._stream: Any = None

    def __enter__(self) -> Journal:
        with disk_errors(self._path):
            self._stream = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self._stream.close()

    def add(self, answer: Answer) -> None:
        """Write one answer; one that was aborted is written too, and asked for again by the next start."""
        with disk_errors(self._path):
            self._stream.write(json.dumps(answer, ensure_ascii=False) + "\n")
            self._stream.flush()
        self.answers[answer["index"]] = answer

    def in_file_order(self) -> list[Answer]:
        """Return all answers in the order of the prompt file."""
        return [self.answers[index] for index in sorted(self.answers)]


def write_sample(path: Path, answers: Sequence[Answer], *, every: int) -> None:
    """Write every n-th answer, whole or not at all."""
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in answers if one["index"] % every == 0)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)


def digest(*parts: Any) -> str:
    """Hash plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _stored(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_same(known: Mapping[str, str], key: Mapping[str, str], path: Path) -> None:
    differ = [text for name, text in NAMES.items() if known.get(name) != key.get(name)]
    if differ:
        raise UserError(
            f"These answers are to other questions: {' and '.join(differ)} changed since",
            where=str(path),
            why="Answers of two kinds in one file would be worth nothing",
            do="Start a new run, or set back what changed",
        )


def _read(path: Path) -> dict[int, Answer]:
    """Return finished answers; what a kill left of a last line is cut off."""
    with disk_errors(path):
        data = path.read_bytes()
        lines = data.split(b"\n")
        torn = lines.pop()
        found: dict[int, Answer] = {}
        for number, line in enumerate(lines, start=1):
            answer = _parsed(line)
            if answer is not None:
                found[answer["index"]] = answer
            elif number == len(lines) and not torn:
                torn = line + b"\n"
            else:
                raise UserError(
                    "The line is no answer",
                    where=f"{path}, line {number}",
                    do="Remove the line: its prompt is asked again then",
                )
        if torn:
            os.truncate(path, len(data) - len(torn))
    return {index: one for index, one in found.items() if one.get("finish") != ABORT}


def _parsed(line: bytes) -> Answer | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("index"), int) else None
