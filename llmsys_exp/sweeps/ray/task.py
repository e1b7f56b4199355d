"""What Ray runs on a node: the job of one point, and the end of one whose worker is gone.

The job is a process in a session of its own, as on any machine. It holds one end of a pipe whose other end is
the worker's: when the worker lets go of it or dies, however that came, the job saves a checkpoint and ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.launch.failure import kernel_kills
from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.sweeps.folder import open_sweep
from llmsys_exp.sweeps.ledger.ledger import PointState
from llmsys_exp.sweeps.ledger.settle import settle
from llmsys_exp.sweeps.running.job import LEASE, LIFELINE
from llmsys_exp.sweeps.running.processes import end_point, is_alive, tag_of
from llmsys_exp.sweeps.running.start import failure_of, job_command

PREFIX = "ray-"
"""Begins the name of a lease that is a node of Ray's."""
POLL_S = 0.05


def run_point(folder: str, number: int, timeout_s: float | None) -> dict[str, Any]:
    """Run a point to its end; return the exit code of its command, or why there is none.

    Args:
        folder: of the sweep, on a disk that all nodes see under one name.
        number: of the point.
        timeout_s: how long it may take.
    """
    kills, child = kernel_kills(), None
    # Ray cancels by an interrupt, which nobody hears where the cluster was started with `nohup` or `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hold, line = os.pipe()
    try:
        paths, sweep = open_sweep(Path(folder))
        env = {**os.environ, **tag_of(sweep.id, number), LEASE: _lease(), LIFELINE: str(hold)}
        log = paths.point_log(number)
        with disk_errors(log), log.open("ab") as stream:
            child = _start(job_command(paths.folder, number, timeout_s), env, stream.fileno(), hold)
        _wait(child)
    except UserError as error:
        return {"refused": str(error), "node": socket.gethostname()}
    except KeyboardInterrupt:
        pass  # the task is cancelled: the job is told by the end of the line
    finally:
        os.close(line)
        os.close(hold)
    if child is None:
        return {"code": None}
    # a shell tells of a signal by a number above 128
    code = _wait(child)
    code = 128 - code if code > 128 else code
    settle(sweep, sweep.ledger(paths), number, failure=failure_of(code, kills))
    return {"code": code}


def end_lost(folder: str, number: int, wait_s: float, failure: tuple[str, str] | None) -> None:
    """Write down what became of a point of this node whose worker is gone; nothing of it runs on after that.

    Args:
        folder: of the sweep.
        number: of the point.
        wait_s: how long its job may take to save and end by itself.
        failure: kind and words, where it is known how the worker ended.
    """
    paths, sweep = open_sweep(Path(folder))
    ledger, until = sweep.ledger(paths), time.monotonic() + wait_s
    while is_alive(ledger.states()[number].fields) and time.monotonic() < until:
        time.sleep(POLL_S)
    while end_point(sweep.id, number):
        time.sleep(POLL_S)
    settle(sweep, ledger, number, failure=failure)


def node_of(now: PointState) -> str | None:
    """Return the node that the newest attempt at a point ran on; None where Ray did not start it."""
    lease = next(iter(now.fields.get("lease") or ()), "")
    return lease.removeprefix(PREFIX) if lease.startswith(PREFIX) else None


def _lease() -> str:
    import ray

    gpus = [f"gpu-{entry}" for entry in os.environ.get(VISIBLE, "").split(",") if entry]
    return ",".join([f"{PREFIX}{ray.get_runtime_context().get_node_id()}", *gpus])


def _start(command: Sequence[str], env: dict[str, str], log: int, hold: int) -> subprocess.Popen[bytes]:
    # A worker that ends in good order kills its children at once: what it kills is a shell that only waits.
    apart = ("sh", "-c", '"$@" & wait $!', "sh")
    return subprocess.Popen(
        [*apart, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=(hold,),
    )


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code; Ray's interrupt is only seen between calls."""
    while child.poll() is None:
        time.sleep(POLL_S)
    return int(child.returncode)
