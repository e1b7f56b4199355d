"""Progress of a worker: one line that moves on a terminal, about ten lines a bar where there is none."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol

from llmsys_exp.launch.process import Event
from llmsys_exp.report.console import Console, duration
from llmsys_exp.report.progress_line import EMPTY, FULL, figures_of, progress_line, time_left_s

TENTHS = 10
TRAIN, EVALUATION = "train", "evaluate"
QUIET_S = 20.0
"""Where nothing is drawn, bars other than training's are told of when nothing was said for so long."""
INDENT = 2
_ASCII = str.maketrans({FULL: "#", EMPTY: "-"})


class Progress(Protocol):
    """Shows the events of one worker; use it as a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def handle(self, event: Event) -> None:
        """Show a `phase`, `progress`, `result` or `note` event; others are ignored."""
        ...


def make_progress(console: Console) -> Progress:
    """Return a moving line for a terminal, plain lines for anything else."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class _Clock:
    """Time left of each bar, from when it was first seen: a resumed run does not begin at 0."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[int, float]] = {}

    def left_s(self, event: Event) -> float | None:
        name, done, total = str(event.get("name", "")), int(event.get("done", 0)), int(event.get("total", 0))
        first, started = self._started.setdefault(name, (done, time.monotonic()))
        return time_left_s(done - first, total - done, time.monotonic() - started)


class LineProgress:
    """Writes a line when a phase begins and about ten lines for the steps."""

    def __init__(self, console: Console) -> None:
        self._console, self._clock = console, _Clock()
        self._shown: dict[str, int] = {}
        self._phase_now = ""
        self._said_at = time.monotonic()

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def handle(self, event: Event) -> None:
        """Write what the event says, if it is time for a line."""
        text = _said(event)
        if event["event"] == "phase":
            text = self._phase(str(event.get("name", "")))
        elif event["event"] == "progress":
            text = self._progress(event)
        if text:
            self._said_at = time.monotonic()
            self._console.line("  " + text)

    def _phase(self, name: str) -> str:
        again, self._phase_now = name == self._phase_now, name
        return "" if again else f"{name} ..."

    def _progress(self, event: Event) -> str:
        name, done, total = str(event.get("name", "")), int(event.get("done", 0)), int(event.get("total", 0))
        left_s = self._clock.left_s(event)
        tenth = TENTHS * done // total if total else 0
        if done == 0 or tenth <= self._shown.get(name, 0):
            return ""
        if name != TRAIN and time.monotonic() - self._said_at < QUIET_S and done < total:
            return ""
        self._shown[name] = tenth
        if name.startswith(EVALUATION) and done == total:
            return ""  # its result follows
        return progress_line(event, left_s=left_s, width=max(self._console.width, 200))


class BarProgress:
    """Draws the bar that moves below the lines that are finished; a bar that is full becomes one of them."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        rich_console = RichConsole(
            file=console.stream, no_color=not console.colour, highlight=False, soft_wrap=False
        )
        self._clock = _Clock()
        self._bar: Event | None = None
        self._phase = ""
        self._phase_began = time.monotonic()
        self._live = Live(
            console=rich_console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> BarProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_bar()
        self._phase = ""
        self._live.stop()

    def handle(self, event: Event) -> None:
        """Move the bar; what has no steps is shown with its time."""
        if event["event"] == "phase":
            self._keep_bar()
            self._phase, self._phase_began = str(event.get("name", "")), time.monotonic()
        elif event["event"] == "progress":
            if self._bar is not None and self._bar.get("name") != event.get("name"):
                self._keep_bar()
            self._bar = event
            if event.get("done") == event.get("total"):
                self._keep_bar()
        elif said := _said(event):
            self._print(said)

    def _keep_bar(self) -> None:
        """Leave the last state of a bar standing as a line; an evaluation's result says more."""
        bar, self._bar = self._bar, None
        if bar is not None and not str(bar.get("name", "")).startswith(EVALUATION):
            self._print(progress_line(bar, width=self._width))

    def _print(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text("  " + text))

    @property
    def _width(self) -> int:
        return max(20, self._live.console.width - INDENT - 1)

    def _render(self) -> Any:
        from rich.text import Text

        if self._bar is not None:
            text = progress_line(self._bar, left_s=self._clock.left_s(self._bar), width=self._width, bar=True)
        elif self._phase:
            text = f"{self._phase} ... {duration(time.monotonic() - self._phase_began)}"
        else:
            return Text("")
        if "utf" not in self._live.console.encoding.lower():
            text = text.translate(_ASCII)
        return Text("  " + text, no_wrap=True, overflow="ellipsis", style="cyan" if self._bar else "dim")


def _said(event: Event) -> str:
    """Return the line that an event is worth anywhere."""
    if event["event"] == "note":
        return f"note: {event.get('text', '')}"
    if event["event"] == "result":
        return "  ".join([f"{event.get('name', '')}:", *(piece.text for piece in figures_of(event))])
    return ""
