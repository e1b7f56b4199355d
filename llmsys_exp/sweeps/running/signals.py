"""Signals that ask a runner to stop, counted: the first asks the jobs, the second ends them."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """How often the process was asked to stop; use it as a context manager around the work."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
