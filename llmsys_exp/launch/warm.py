"""A worker that stays: it gets one run folder after the other and keeps its engine in between."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from llmsys_exp.errors import UserError
from llmsys_exp.launch.process import (
    GRACE_S,
    Event,
    OnEvent,
    Record,
    deadline,
    failed,
    follow,
    started,
)


class WarmWorker:
    """Started by the first folder; a context manager, after which nothing of it is left."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str]) -> None:
        """Describe the worker; nothing is started yet.

        Args:
            command: reads a folder a line from its standard input, and prints a `done` event after each.
            env: its whole environment.
        """
        self._command, self._env = list(command), dict(env)
        self._stack = ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._session = Record(on_event=lambda event: None, on_line=None)

    def __enter__(self) -> WarmWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that can do another folder."""
        return self._process is not None and self._process.poll() is None

    def run(
        self,
        folder: Path,
        *,
        log: Path,
        on_event: OnEvent,
        on_line: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Have one folder done; raises what `run_worker` raises. The worker may live on after a failure."""
        record = Record(on_event, on_line, family=self._session.family)
        try:
            with log.open("a", encoding="utf-8") as stream:
                code = self._do(folder, stream, record, timeout_s)
        except OSError as error:
            self.close()
            raise UserError(
                f"Cannot run the worker: {error.strerror or error}", where=str(error.filename or log)
            ) from error
        except BaseException:
            # an interrupt comes in the middle of a folder: what the worker says next belongs to no other
            self._process = None
            self._stack.close()
            raise
        if code != 0 or record.timed_out:
            raise failed(code, record, log)

    def close(self) -> None:
        """Let the worker end by itself, which gives the engine time to stop; end it if it does not."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
        self._stack.close()

    def _do(self, folder: Path, stream: TextIO, record: Record, timeout_s: float | None) -> int:
        if not self.is_alive:
            self.close()
            self._process = self._stack.enter_context(
                started(self._command, self._env, self._session, stdin=subprocess.PIPE)
            )
        process = self._process
        assert process is not None and process.stdin is not None
        with deadline(process, timeout_s, record):
            with suppress(BrokenPipeError):  # it is dead, and the end of its output says so
                process.stdin.write(f"{folder}\n")
                process.stdin.flush()
            done = _done_with(folder, process, stream, record)
            return int(done.get("code", 1)) if done is not None else process.wait() or 1


def _done_with(folder: Path, process: subprocess.Popen[str], stream: TextIO, record: Record) -> Event | None:
    """Follow the worker until it is done with a folder; None where it ends without saying so."""
    while (event := follow(process, stream, record)) is not None:
        if Path(str(event.get("folder", ""))).resolve() == folder.resolve():
            return event
    return None
