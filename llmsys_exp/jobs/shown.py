"""Run one worker with its progress on the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmsys_exp.launch.process import run_worker
from llmsys_exp.report.console import Console
from llmsys_exp.report.progress import make_progress


def run_shown(
    command: Sequence[str],
    console: Console,
    *,
    env: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run a worker to its end; raises what `run_worker` raises."""
    with make_progress(console) as progress:
        run_worker(command, env=env, log=log, on_event=progress.handle, on_line=on_line, timeout_s=timeout_s)
