"""One bar a step with time left: drawn on a terminal, a plain line each tenth where there is none."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol

from llmsys_exp.launch.process import Event
from llmsys_exp.report.console import Console, duration

FIXED_KEYS = ("event", "name", "done", "total", "unit")
TENTHS = 10


class Progress(Protocol):
    """Shows the events of one worker; use it as a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def handle(self, event: Event) -> None:
        """Show a `phase`, `progress` or `note` event; others are ignored."""
        ...


def make_progress(console: Console) -> Progress:
    """Return bars for a terminal, lines for anything else."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class LineProgress:
    """Writes a line when a phase begins and about ten lines for each bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, tuple[int, float]] = {}
        self._shown: dict[str, int] = {}

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def handle(self, event: Event) -> None:
        """Write what the event says, if it is time for a line."""
        if event["event"] == "phase":
            self._console.line(f"  {event.get('name', '')} ...")
        elif event["event"] == "note":
            self._console.line(f"  note: {event.get('text', '')}")
        elif event["event"] == "progress":
            self._progress(event)

    def _progress(self, event: Event) -> None:
        name, done, total = str(event.get("name", "")), int(event.get("done", 0)), int(event.get("total", 0))
        first, started = self._started.setdefault(name, (done, time.monotonic()))
        tenth = TENTHS * done // total if total else 0
        if done == 0 or tenth <= self._shown.get(name, 0):
            return
        self._shown[name] = tenth
        parts = [
            f"{name} {done}/{total} {event.get('unit', '')}".rstrip(),
            describe_extras(event),
            time_left(done - first, total - done, time.monotonic() - started),
        ]
        self._console.line("  " + "  ".join(part for part in parts if part))


def time_left(done: int, left: int, elapsed_s: float) -> str:
    """Say how long the rest will take, judging by what is done since the clock was started."""
    if done <= 0 or left <= 0:
        return ""
    return f"{duration(elapsed_s / done * left)} left"


class BarProgress:
    """Draws one bar for each name, below the lines that are finished."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        rich_console = RichConsole(file=console.stream, no_color=not console.colour, highlight=False)
        self._bars = RichProgress(
            TextColumn("  {task.description:<31}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[extras]}"),
            console=rich_console,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_phase()
        self._bars.stop()

    def handle(self, event: Event) -> None:
        """Move the bar that the event names; a phase without steps gets a pulsing one."""
        if event["event"] == "phase":
            self._end_phase()
            name = str(event.get("name", ""))
            self._tasks[""] = self._bars.add_task(name, total=None, extras="")
        elif event["event"] == "note":
            self._bars.console.print(f"  note: {event.get('text', '')}", markup=False)
        elif event["event"] == "progress":
            self._move(event)

    def _move(self, event: Event) -> None:
        self._end_phase()
        name = str(event.get("name", ""))
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=event.get("total"), extras="")
        self._bars.update(
            self._tasks[name],
            completed=event.get("done"),
            total=event.get("total"),
            extras=describe_extras(event),
        )

    def _end_phase(self) -> None:
        task = self._tasks.pop("", None)
        if task is not None:
            self._bars.remove_task(task)


def describe_extras(event: Event) -> str:
    """Write the measurements of a progress event as `loss 1.93  lr 1e-04`."""
    return "  ".join(f"{key} {_number(value)}" for key, value in event.items() if key not in FIXED_KEYS)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
