"""Run one worker: own process group, output copied to the log, events passed on, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from llmsys_exp.errors import EXIT_USER, JobError, UserError
from llmsys_exp.launch.failure import BUG, classify, failure_of_event, kernel_kills, log_tail
from llmsys_exp.launch.stopping import SAVING_GRACE_S, Family, GentleStop

MARKER = "@llmsys "
GRACE_S = 5.0
_EVENT_KEYS = ("event", "kind", "text", "code")
STOPPED, DONE = "stopped", "done"
KEPT_LINES = 400

Event = dict[str, Any]
OnEvent = Callable[[Event], None]


@dataclass
class Record:
    """What was seen of a worker, or of one piece of its work."""

    on_event: OnEvent
    on_line: Callable[[str], None] | None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    error: Event | None = None
    timed_out: bool = False
    kernel_kills: int = field(default_factory=kernel_kills)
    family: Family = field(default_factory=Family)

    def __post_init__(self) -> None:
        self.gentle = GentleStop(lambda text: self.on_event({"event": "note", "text": text}))

    def kernel_kills_more(self) -> bool:
        """Whether the kernel ended a process for want of memory since the start."""
        return kernel_kills() > self.kernel_kills


def run_worker(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    on_event: OnEvent,
    on_line: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run a worker to its end; `on_line` gets what it prints beside events.

    Raises:
        UserError: when the worker says that the user can mend it (exit code 2).
        JobError: when it fails in any other way, with kind and last lines.
    """
    record = Record(on_event, on_line)
    try:
        with (
            log.open("a", encoding="utf-8") as stream,
            started(command, env, record) as process,
            deadline(process, timeout_s, record),
            record.gentle,
        ):
            follow(process, stream, record)
            returncode = process.wait()
    except OSError as error:
        raise UserError(
            f"Cannot run the worker: {error.strerror or error}", where=str(error.filename or log)
        ) from error
    if returncode != 0 or record.timed_out:
        raise failed(returncode, record, log)


def parse_event(line: str) -> Event | None:
    """Return the event that a line of output carries, if any; ranks may have printed before the marker."""
    _, found, rest = line.partition(MARKER)
    if not found:
        return None
    try:
        event, _ = json.JSONDecoder().raw_decode(rest.strip())
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def stop_group(process: subprocess.Popen[str], family: Family, grace_s: float = GRACE_S) -> None:
    """End a process and everything it started: SIGTERM, then SIGKILL."""
    _signal_group(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    # The leader may be gone while a rank still runs.
    _signal_group(process, signal.SIGKILL)
    family.kill()
    process.wait()


class _HeldSignals:
    """Keeps signals that end the program waiting until `release`."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._before[number] = signal.signal(number, lambda came, _frame: self._came.append(came))

    def release(self) -> None:
        """Put the handlers back; raise KeyboardInterrupt when a signal came meanwhile."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], record: Record, *, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a session of its own; at the end nothing of its family is left."""
    held = _HeldSignals()  # an interrupt within Popen would leave a child that nobody knows
    try:
        process = subprocess.Popen(
            list(command),
            env={**env, **record.family.env()},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except BaseException:
        held.release()
        raise
    ended = threading.Event()
    threading.Thread(target=_sweep_orphans, args=(process, ended, record), daemon=True).start()
    try:
        held.release()
        yield process
    finally:
        ended.set()
        with _no_interrupt():
            stop_group(process, record.family)
            if process.stdout is not None:
                process.stdout.close()


def _sweep_orphans(process: subprocess.Popen[str], ended: threading.Event, record: Record) -> None:
    """End ranks that outlive the leader: they hold its pipe open, and the reader would wait for ever.

    A leader that a signal to the whole job has ended may leave ranks that are about to save.
    """
    process.wait()
    if not ended.wait(GRACE_S if not record.gentle.ask() else SAVING_GRACE_S):
        _signal_group(process, signal.SIGKILL)
        record.family.kill()


@contextmanager
def deadline(process: subprocess.Popen[str], timeout_s: float | None, record: Record) -> Iterator[None]:
    """End the process, and say so in the record, when it takes longer."""
    if timeout_s is None:
        yield
        return

    def expire() -> None:
        record.timed_out = True
        stop_group(process, record.family)

    timer = threading.Timer(timeout_s, expire)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let a second Ctrl-C wait until the children are gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def follow(process: subprocess.Popen[str], log: TextIO, record: Record) -> Event | None:
    """Copy output to the log and pass events on; return a `done` event, or None at the end of the output."""
    assert process.stdout is not None
    for line in process.stdout:
        log.write(line)
        event = parse_event(line)
        if event is None:
            record.lines.append(line.rstrip("\n"))
            if record.on_line is not None:
                record.on_line(record.lines[-1])
            continue
        log.flush()
        if event["event"] == "error":
            # the first to fail says why; the others are stopped on its account
            record.error = record.error or event
        elif event["event"] == DONE:
            return event
        elif event["event"] == "stoppable":
            record.gentle.learn(event)
        else:
            record.on_event(event)
    return None


def failed(returncode: int, record: Record, log: Path) -> UserError:
    """Return what a worker's exit code, its error event and its last lines come to."""
    lines, error = list(record.lines), record.error or {}
    # torchrun ends with 1 whatever a rank ended with
    code = int(error.get("code", returncode))
    if error and not record.timed_out and (code == EXIT_USER or error.get("kind") in ("config", "data")):
        refused = UserError(str(error.get("text", "")))
        refused.kind = str(error.get("kind", refused.kind))
        return refused
    failure = classify(
        returncode, lines, timed_out=record.timed_out, killed_by_kernel=record.kernel_kills_more()
    )
    if error and not record.timed_out:
        failure = failure_of_event(error, otherwise=failure)
    # who asked a run to stop knows why it ended, and needs no log
    tail, where = ("", "") if failure.kind == STOPPED else (log_tail(lines), str(log))
    job_error = JobError(failure.what, kind=failure.kind, log_tail=tail, where=where, do=failure.do)
    job_error.details = {key: value for key, value in error.items() if key not in _EVENT_KEYS}
    # a bug of the worker is a failed job to whoever started it
    if "code" in error and failure.kind != BUG:
        job_error.exit_code = code
    return job_error


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    # The group's id is the leader's process id, because the leader opened its own session.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
