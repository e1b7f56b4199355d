"""The process that holds SGLang: started in a session of its own, spoken with over two pipes, ended by group.

An engine that fails to start kills its caller with everything the caller started, and a kernel that fails
takes the process with it: neither may reach the worker, which holds the answers.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmsys_exp.workers.engines.base import EngineError

HOST = Path(__file__).with_name("sglang_host.py")
GRACE_S = 10.0
"""What SGLang gets to end its processes before the group is killed."""
TAIL_BYTES = 200_000
Event = dict[str, Any]


class HostProcess:
    """One `sglang_host.py`."""

    def __init__(self, python: str, *, log: Path, env: Mapping[str, str]) -> None:
        """Start it; what it and SGLang print is appended to `log`."""
        self.log = log
        self._log_from = log.stat().st_size if log.is_file() else 0
        self._events: queue.Queue[Event | None] = queue.Queue()
        theirs_in, self._out = os.pipe()
        inward, theirs_out = os.pipe()
        try:
            with log.open("ab") as stream:
                self._process = subprocess.Popen(
                    [python, str(HOST), str(theirs_in), str(theirs_out)],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env},
                    pass_fds=(theirs_in, theirs_out),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._out)
            os.close(inward)
            raise EngineError(
                f"Cannot run SGLang's Python: {error.strerror or error}",
                where=f"inference.sglang.python={python}",
                do="Give the interpreter of the environment that holds SGLang: /path/to/venv/bin/python",
            ) from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        threading.Thread(target=self._read, args=(inward,), daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group and session."""
        return self._process.pid

    def send(self, **order: Any) -> None:
        """Hand an order over; one to a process that has ended is lost, and `receive` says so."""
        data = (json.dumps(order) + "\n").encode()
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._out, data) :]

    def receive(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event; None: the process has ended.

        Raises:
            TimeoutError: when nothing came in time.
        """
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status once it has ended; None: it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def printed(self) -> str:
        """Return the end of what it has printed."""
        with self.log.open("rb") as stream:
            stream.seek(max(self._log_from, self.log.stat().st_size - TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace")

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """End it and all that it started. May be called twice."""
        if self.poll() is None and grace_s:
            self.send(op="stop")
            self.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def _read(self, inward: int) -> None:
        with os.fdopen(inward, encoding="utf-8") as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):  # the last line of a process that was killed
                    self._events.put(json.loads(line))
        self._events.put(None)


class Deadline:
    """Seconds that are left of a limit."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Never below zero."""
        return max(0.0, self._end - time.monotonic())
