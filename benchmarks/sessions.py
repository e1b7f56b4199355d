"""Programs under measurement in sessions of their own, so that whatever they start can be ended with them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_in_session(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str], timeout_s: float
) -> bool:
    """Run a program, what it prints into `log`, and kill what is left of it; return whether it overstayed."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return True
        finally:
            _kill(process)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
