"""Asks a process with SGLang in it to play a model, and reads its answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import NotSimulated

PYTHON = "LLMSYS_SGLANG_PYTHON"
"""Environment variable: the interpreter that holds SGLang, where that is another one."""
CHILD = "planner.simulate.serving.child"
TIMEOUT_S = 300.0
ROOT = Path(__file__).resolve().parents[3]
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
MOST_SAID = 300


def run_child(request: Mapping[str, Any], *, python: str | None = None) -> dict[str, Any]:
    """Play one model.

    Args:
        request: what `child.answer` takes.
        python: the interpreter that holds SGLang; None: `LLMSYS_SGLANG_PYTHON`, else this one.

    Raises:
        NotSimulated: where SGLang is not there, or its code cannot be played, with the reason.
    """
    python = python or os.environ.get(PYTHON) or sys.executable
    said, log = _run([python, "-m", CHILD], json.dumps(request))
    if "No module named 'sglang'" in log and not said:
        raise NotSimulated(_absent(python))
    try:
        answer = json.loads(said)
    except json.JSONDecodeError as error:
        last = (log.strip().splitlines() or ["it said nothing"])[-1][:MOST_SAID]
        raise NotSimulated(f"the process that plays SGLang ended: {last}") from error
    if "refused" in answer:
        if "No module named 'sglang'" in answer["refused"]:
            raise NotSimulated(_absent(python))
        raise NotSimulated(f"SGLang's code cannot be simulated: {answer['refused']}")
    return answer


def _absent(python: str) -> str:
    return (
        f"tier simulate runs SGLang's own code, and {python} has no sglang; name an interpreter that has it: "
        f"{PYTHON}, or inference.sglang.python"
    )


def _run(command: list[str], request: str) -> tuple[str, str]:
    """Run a process in a session of its own; at a time-out or an interruption all of it is killed."""
    environment = {name: value for name, value in os.environ.items() if name not in RANKS}
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(ROOT) if not known else f"{known}{os.pathsep}{ROOT}"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment, cwd=scratch, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotSimulated(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            return process.communicate(request, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise NotSimulated(f"SGLang's code took more than {TIMEOUT_S:g} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
