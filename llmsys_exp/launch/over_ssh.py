"""Start one command on every machine of a job over ssh, and end all of them when one fails.

python -m llmsys_exp.launch.over_ssh --hosts a,b --env=KEY=VALUE -- COMMAND with {node_rank}
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

POLL_S = 0.2
GRACE_S = 30.0
SSH = ("ssh", "-tt", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR")
"""With a terminal, the far process ends together with the connection; nobody is asked for a password."""


def remote_command(command: Sequence[str], *, node_rank: int, variables: Sequence[str], folder: str) -> str:
    """Return the line that a machine's shell runs."""
    words = [word.replace("{node_rank}", str(node_rank)) for word in command]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(['env', *variables, *words])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command everywhere; return the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="over_ssh")
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, _stop)
    try:
        for rank, host in enumerate(given.hosts.split(",")):
            line = remote_command(given.command, node_rank=rank, variables=given.env, folder=os.getcwd())
            processes.append(subprocess.Popen([*SSH, host, line], stdin=subprocess.DEVNULL))
        return _wait(processes)
    finally:
        _end(processes)


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return failed[0] if failed else 0
        time.sleep(POLL_S)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
