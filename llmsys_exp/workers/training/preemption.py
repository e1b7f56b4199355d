"""SIGTERM and SIGINT while steps are run: finish the step, save, and end so that the run can go on later."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

from llmsys_exp.errors import EXIT_STOPPED, JobError
from llmsys_exp.workers import events
from llmsys_exp.workers.exits import Interrupted

SAME_SIGNAL_S = 3.0
"""Launchers pass a signal on that the rank has got already: what comes within this time is one request."""


class Stopped(JobError):
    """The run ended on request, with a checkpoint to go on from."""

    exit_code = EXIT_STOPPED


class StopRequest:
    """Notes the first signal and lets the second end the process; use it as a context manager around steps.

    Any rank may have got the signal: the loop adds `requested` of all ranks up in each step, so that they
    stop after the same one.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._first_at: float | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether this rank was told to stop."""
        return self._first_at is not None

    def __enter__(self) -> StopRequest:
        if self._enabled:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
            events.stoppable(os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            events.stoppable(0)
        for number, handler in self._before.items():
            # once told to stop, the process is on its way out, and launchers repeat themselves
            signal.signal(number, signal.SIG_IGN if self.requested else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        elif now - self._first_at > SAME_SIGNAL_S:
            raise Interrupted
