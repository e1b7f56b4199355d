"""Stop a training worker gently: it finishes its step, saves a checkpoint and ends by itself."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil

SAVING_GRACE_S = 600.0
"""How long ranks may take to save when whoever started them is gone."""
SAME_SIGNAL_S = 3.0
"""A batch system signals its script and what that started, and the script passes its own on: one request."""


class GentleStop:
    """Turns the first signal into a request to the worker; use it as a context manager around the following.

    Rank 0 says by an event that it can be asked. One rank is enough, as all of them agree on the step to stop
    after; launchers are left alone, because DeepSpeed's kills the ranks 30 s after it is told to stop.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._pid, self._born = 0, ""
        self._asked = False
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def learn(self, event: dict[str, Any]) -> None:
        """Take in a `stoppable` event: the process to ask, or 0 when it can no longer be asked."""
        # the number of a process on another machine is somebody else's here
        is_here = event.get("host", socket.gethostname()) == socket.gethostname()
        self._pid = int(event.get("pid", 0)) if is_here else 0
        self._born = _start_time(self._pid)

    def ask(self) -> bool:
        """Ask the worker to stop; return whether there was one that can be asked."""
        # a killed process's number may by now be another's
        if not self._pid or _start_time(self._pid) != self._born:
            return False
        self._asked, self._asked_at = True, time.monotonic()
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, signal.SIGTERM)
            return True
        return False

    def __enter__(self) -> GentleStop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # who presses Ctrl-C twice means it
        if self._asked and number != signal.SIGINT and time.monotonic() - self._asked_at < SAME_SIGNAL_S:
            return
        if self._asked or not self.ask():
            raise KeyboardInterrupt
        # the signal may have come amid a write to the very stream that this goes to
        with suppress(RuntimeError):
            self._say("stopping after this step, with a checkpoint; a second signal ends everything at once")


class Family:
    """Everything that one command has started, wherever it went.

    torchrun gives each rank a session of its own, so neither a process group nor, once torchrun is gone, the
    list of children leads to them. What a process inherits for certain is its environment.
    """

    VARIABLE = "LLMSYS_FAMILY"

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex

    def env(self) -> dict[str, str]:
        """Return what to add to the environment of the first process."""
        return {self.VARIABLE: self._name}

    def kill(self) -> None:
        """End what is left of it at once."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(self.VARIABLE) == self._name:
                    process.kill()


def _start_time(pid: int) -> str:
    """Return when a process was started, in the kernel's clock ticks; empty where nobody knows."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
