"""Run a worker with its progress on the screen."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.inputs.find import conversion
from llmsys_exp.launch.process import run_worker
from llmsys_exp.report.console import Console, duration
from llmsys_exp.report.progress import make_progress


def every_line(console: Console, *, enabled: bool) -> Callable[[str], None] | None:
    """Return what shows a worker's own lines (`--verbose`); None: they go to the log alone."""
    return (lambda text: console.line(f"  | {text}")) if enabled else None


def run_titled(
    command: Sequence[str],
    title: str,
    console: Console,
    *,
    env: Mapping[str, str],
    log: Path,
    verbose: bool,
    timeout_s: float | None = None,
) -> float:
    """Run a worker under a title and return the seconds it took; raises what `run_worker` raises."""
    console.title(title)
    if verbose:
        console.line(f"  $ {shlex.join(command)}")
    began = time.monotonic()
    show = every_line(console, enabled=verbose)
    run_shown(command, console, env=env, log=log, on_line=show, timeout_s=timeout_s)
    seconds = time.monotonic() - began
    console.line(console.style(f"  done in {duration(seconds)}", "dim"))
    return seconds


def convert_weights(
    config: Config, python: str, console: Console, *, env: Mapping[str, str], log: Path, verbose: bool
) -> float:
    """Convert the weights of `model.package`, and return the seconds: 0 where none is named.

    A folder that is there and whole is used again.
    """
    command = conversion(config, python)
    if command is None:
        return 0.0
    title = f"Weights of {config.model.id}"
    return run_titled(command, title, console, env=env, log=log, verbose=verbose)


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
