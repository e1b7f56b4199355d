"""What a task of a Slurm array does: run one point; when its time is up, save and go back to the queue.

submitit starts it on the node, calls `checkpoint` at the signal that Slurm sends some time before the end,
and requeues the task with what that returns.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.errors import EXIT_STOPPED
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.sweeps.folder import open_sweep
from llmsys_exp.sweeps.ledger.ledger import FAILED, PLANNED, RUNNING, Ledger
from llmsys_exp.sweeps.ledger.settle import AGAIN, end_gone
from llmsys_exp.sweeps.running.job import LEASE
from llmsys_exp.sweeps.running.processes import tag_of
from llmsys_exp.sweeps.running.start import job_command

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

PREFIX = "slurm-"
"""Begins the name of a lease that is a task of Slurm's."""


class PointTask:
    """One point of a sweep as a task of an array; small, as submitit writes it to a file."""

    def __init__(self, folder: str, number: int, timeout_s: float | None) -> None:
        """Name the point.

        Args:
            folder: of the sweep, on a disk that all nodes see.
            number: of the point.
            timeout_s: how long one attempt may take.
        """
        self.folder, self.number, self.timeout_s = folder, number, timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the point to its end and return the exit code of its command."""
        paths, sweep = open_sweep(Path(self.folder))
        lease = f"{PREFIX}{_task_id()}"
        take_back(sweep.ledger(paths), self.number, lease)
        env = {**os.environ, **tag_of(sweep.id, self.number), LEASE: lease}
        log = paths.point_log(self.number)
        with disk_errors(log), log.open("ab") as stream:
            self._child = _start(job_command(paths.folder, self.number, self.timeout_s), env, stream.fileno())
        return _wait(self._child)

    def checkpoint(self) -> DelayedSubmission | None:
        """Let the command save and end; return what to run again, or None where it did not save."""
        from submitit.helpers import DelayedSubmission

        if self._child is None:
            return None
        self._child.terminate()
        if _wait(self._child) != EXIT_STOPPED:
            return None
        return DelayedSubmission(PointTask(self.folder, self.number, self.timeout_s))


def take_back(ledger: Ledger, number: int, lease: str) -> None:
    """Let a point be started by the very task that had it before: Slurm starts none twice at a time."""
    now = ledger.states()[number]
    if now.state == RUNNING and now.fields.get("lease") == [lease]:
        end_gone(ledger, number)
    elif now.state == FAILED and now.fields.get("kind") in AGAIN and now.fields.get("lease") == [lease]:
        ledger.move(number, PLANNED)


def _task_id() -> str:
    """Return what `squeue` calls the task that we are."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _start(command: Sequence[str], env: dict[str, str], log: int) -> subprocess.Popen[bytes]:
    # the signal that asks for a checkpoint reaches every process of the task, and would end those of training
    deaf = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")
    return subprocess.Popen([*deaf, *command], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a child, as often as one asks.

    `Popen.wait` holds a lock, and `checkpoint` is called in the middle of it.
    """
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
