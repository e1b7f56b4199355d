"""Workers as forks of one process that has imported the heavy libraries: imports cost more than tiny runs do.

Ranks are started here, without a launcher; tests of launching, stopping and GPUs start processes of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any
from unittest import mock

from tiny_jobs import environment

IMPORTED = "all_imported"
SETTINGS = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""What libraries read when they are imported; a thread that they started would not live on in a fork."""
GRACE_S = 5.0
"""What other ranks have left after one has failed: a launcher would end them too."""


def run_forked(
    module: str, *arguments: Any, ranks: int | None = None, timeout_s: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run a module as `python -m` would: alone, or once for every rank with their output in one."""
    words = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        codes = _codes(_forks(words, said, ranks=ranks), words, timeout_s)
        code = next((one for one in codes if one), 0)
        return subprocess.CompletedProcess(words, code, *(one.read_text(encoding="utf-8") for one in said))


def start_forked(module: str, *arguments: Any, ranks: int, env: dict[str, str]) -> list[Any]:
    """Start a module once for every rank, unheard, and return the processes."""
    nowhere = [Path(os.devnull)] * 2
    workers = _forks([module, *map(str, arguments)], nowhere, ranks=ranks, env=env)
    for one in workers:
        one.start()
    return workers


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _forks(
    words: list[str], said: list[Path], *, ranks: int | None, env: dict[str, str] | None = None
) -> list[Any]:
    """Return a process a rank, not started."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([IMPORTED])
    with mock.patch.dict(os.environ, SETTINGS | {"PYTHONPATH": environment()["PYTHONPATH"]}):
        forkserver.ensure_running()
    places = [{}] if ranks is None else _places(ranks)
    own = environment() | (env or {})
    return [context.Process(target=_become, args=(words, own | one, *map(str, said))) for one in places]


def _places(ranks: int) -> list[dict[str, str]]:
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _become(words: list[str], env: dict[str, str], out: str, err: str) -> None:
    """Run in the fork: be the module, with an environment, arguments and output of its own."""
    for number, name in ((1, out), (2, err)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(env | SETTINGS)
    sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
    assert IMPORTED in sys.modules, "a module that cannot be preloaded is passed over in silence"
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _codes(workers: list[Any], words: list[str], timeout_s: float) -> list[int | None]:
    """Start them, wait, and return their exit codes; after a failure the others are ended."""
    for one in workers:
        one.start()
    end = time.monotonic() + timeout_s
    failed = False
    try:
        while running := [one.sentinel for one in workers if one.is_alive()]:
            connection.wait(running, timeout=max(0.0, end - time.monotonic()))
            if not failed and any(one.exitcode for one in workers):
                failed, end = True, min(end, time.monotonic() + GRACE_S)
            if time.monotonic() >= end:
                if not failed:
                    raise subprocess.TimeoutExpired(words, timeout_s)
                break
    finally:
        for one in workers:
            one.kill()
            one.join()
    return [one.exitcode for one in workers]
