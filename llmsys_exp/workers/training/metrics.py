"""metrics.jsonl and the progress line: what a step came to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmsys_exp.workers import events

if TYPE_CHECKING:
    from llmsys_exp.workers.training.loop import StepReport
    from llmsys_exp.workers.training.memory import MemoryMeter


class Metrics:
    """Writes one line a logged step; use it as a context manager. Only rank 0 writes."""

    def __init__(self, path: Path, memory: MemoryMeter, *, steps: int, log_every: int, writes: bool) -> None:
        self._path, self._memory, self._steps = path, memory, steps
        self._log_every, self._writes = log_every, writes
        self._began = time.monotonic()
        self._file: Any = None

    def __enter__(self) -> Metrics:
        if self._writes:
            self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, report: StepReport) -> None:
        """Write and show a step, if it is one to be logged."""
        if not self._writes or ((report.step - 1) % self._log_every and report.step != self._steps):
            return
        tokens_per_s = report.tokens / report.seconds
        shown = {
            "loss": report.loss,
            "lr": report.lr,
            "tokens_per_s": tokens_per_s,
            "grad": report.gradient_norm,
        }
        events.progress("train", report.step, self._steps, unit="step", **shown)
        line = {
            "step": report.step,
            "train/loss": report.loss,
            "lr": report.lr,
            "tokens_per_s": tokens_per_s,
            "grad_norm": report.gradient_norm,
            "wall_s": time.monotonic() - self._began,
        }
        self.write_line(line | {f"mem/{name}": value for name, value in self._memory.now().items()})

    def write_line(self, line: dict[str, Any]) -> None:
        """Append one object and flush it, so that a killed run keeps what it has measured."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
