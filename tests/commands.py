"""`llmsys` as a process of its own: a fork of one that has imported what its verbs need, as imports cost most.

What a fresh interpreter imports, and how it is stopped, is tested with `python -m llmsys_exp`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

IMPORTED = ("hydra", "matplotlib.figure", "matplotlib.backends.backend_agg", "pandas", "rich.console")
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""For the imports: a thread that they started would not live on in a fork."""


def llmsys(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run `llmsys ARGUMENTS` in a folder with an environment; a terminal is 110 columns wide."""
    words = ["llmsys", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "110", **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        asked = {"words": words, "cwd": str(cwd), "env": environment, "timeout_s": timeout_s}
        code = _Server.running().run({**asked, "said": list(map(str, said))})
        return subprocess.CompletedProcess(words, code, *(one.read_text(encoding="utf-8") for one in said))


class _Server:
    """The process that forks, started at the first use by this process."""

    _one: _Server | None = None

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | SETTINGS,
            )
        self._socket, self._lines = ours, ours.makefile("r", encoding="utf-8")
        atexit.register(self.close)

    @classmethod
    def running(cls) -> _Server:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def run(self, asked: dict[str, Any]) -> int:
        """Return the exit code, negative for a signal as subprocess has it."""
        self._socket.sendall(json.dumps(asked).encode() + b"\n")
        code = json.loads(self._lines.readline())
        if code is None:
            raise subprocess.TimeoutExpired(asked["words"], asked["timeout_s"])
        return code

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()


def _become(asked: dict[str, Any]) -> None:
    """Be the command, in the fork."""
    from llmsys_exp.cli.main import main

    for number, name in enumerate(asked["said"], start=1):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["words"]
    main()


def _serve(channel: socket.socket) -> None:
    """Fork for each line and tell the fork's exit code, null for none in time, until nobody asks any more."""
    from llmsys_exp.cli.main import MODULES, VERBS

    for name in (*IMPORTED, *(f"llmsys_exp.cli.{MODULES.get(verb, verb)}" for verb in VERBS)):
        import_module(name)
    # what a fork never touches is never copied
    gc.freeze()
    for line in channel.makefile("r", encoding="utf-8"):
        asked = json.loads(line)
        fork = get_context("fork").Process(target=_become, args=(asked,))
        fork.start()
        fork.join(asked["timeout_s"])
        code = fork.exitcode
        if code is None:
            fork.kill()
            fork.join()
        channel.sendall(f"{json.dumps(code)}\n".encode())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
