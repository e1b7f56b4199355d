"""metrics.jsonl, its mirrors and the progress line: what a step came to."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmsys_exp.workers import events
from llmsys_exp.workers.training.trackers import make_trackers
from planner.units import GIB

if TYPE_CHECKING:
    from llmsys_exp.workers.job import Job
    from llmsys_exp.workers.training.loop import StepReport
    from llmsys_exp.workers.training.memory import MemoryMeter
    from llmsys_exp.workers.training.speed import SpeedMeter


class Metrics:
    """Writes one line a logged step; use it as a context manager. Only rank 0 writes."""

    def __init__(self, job: Job, memory: MemoryMeter, *, steps: int, speed: SpeedMeter, writes: bool) -> None:
        self._path, self._memory, self._steps, self._speed = job.paths.metrics, memory, steps, speed
        self._log_every, self._writes = job.config.training.log_every, writes
        self._planned_gib = (job.plan.get("forecast") or {}).get("peak_allocated_gib")
        self._trackers = make_trackers(job) if writes else []
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
        speed = self._speed.step(tokens=report.tokens, seconds=report.seconds, pairs=report.pairs)
        if not self._writes or ((report.step - 1) % self._log_every and report.step != self._steps):
            return
        memory = self._memory.now()
        shown = {
            "loss": report.loss,
            "lr": report.lr,
            **speed,
            "grad": report.gradient_norm,
            "peak_gib": memory["peak_bytes"] / GIB,
            "planned_gib": self._planned_gib,
        }
        events.progress("train", report.step, self._steps, unit="step", **shown)
        line = {
            "step": report.step,
            "train/loss": report.loss,
            "lr": report.lr,
            **speed,
            "grad_norm": report.gradient_norm,
            "wall_s": time.monotonic() - self._began,
        }
        self.write_line(line | {f"mem/{name}": value for name, value in memory.items()})

    def write_line(self, line: dict[str, Any]) -> None:
        """Append one object and flush it, so that a killed run keeps what it has measured."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker.log(int(line["step"]), line)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell the mirrors what came out."""
        for tracker in self._trackers:
            tracker.finish(summary)
