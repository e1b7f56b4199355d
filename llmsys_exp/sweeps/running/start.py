"""Start the job of one point on this machine, with what was leased for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmsys_exp.errors import EXIT_INTERRUPTED, UserError
from llmsys_exp.launch.failure import KILLED, OOM_HOST, OTHER, kernel_kills
from llmsys_exp.runs.files import disk_errors
from llmsys_exp.sweeps.folder import SweepPaths
from llmsys_exp.sweeps.running.job import EXIT_TAKEN, LEASE, STOPPED
from llmsys_exp.sweeps.running.lease import Lease, Leases, cores, variables
from llmsys_exp.sweeps.running.processes import tag_of


@dataclass
class Child:
    """A job that a runner has started."""

    process: subprocess.Popen[bytes]
    kernel_kills: int = field(default_factory=kernel_kills)

    def failure(self) -> tuple[str, str] | None:
        """Return kind and words for an end that the job itself has not written down."""
        return failure_of(self.process.returncode, self.kernel_kills)


def failure_of(code: int, kills_before: int) -> tuple[str, str] | None:
    """Return kind and words for how a job ended; None where the point is somebody else's.

    Args:
        code: its exit code, below 0 for a signal.
        kills_before: what `kernel_kills` had counted when it was started.
    """
    if code == EXIT_TAKEN:
        return None
    if code == EXIT_INTERRUPTED:
        return STOPPED, "Stopped from outside, twice"
    if kernel_kills() > kills_before:
        return OOM_HOST, "The kernel ended it because main memory ran out"
    if code < 0:
        return KILLED, f"Its command was ended by {signal.Signals(-code).name}"
    return OTHER, f"Its command ended with exit code {code} and wrote no end"


def start_job(paths: SweepPaths, sweep: str, number: int, lease: Lease, *, timeout_s: float | None) -> Child:
    """Start the job of a point, which holds the lease from then on."""
    env = {**os.environ, **tag_of(sweep, number), LEASE: ",".join(lease.names), **variables(lease)}
    allowed, said = os.sched_getaffinity(0), paths.point_log(number)
    try:
        with disk_errors(said):
            said.parent.mkdir(exist_ok=True)  # somebody may have cleared it away
        with disk_errors(said), said.open("ab") as log:
            # what a process starts inherits the cores it may use
            os.sched_setaffinity(0, cores(lease) or allowed)
            process = subprocess.Popen(
                job_command(paths.folder, number, timeout_s),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=lease.descriptors,
            )
    finally:
        os.sched_setaffinity(0, allowed)
        lease.release()
    return Child(process)


def job_command(folder: Path, number: int, timeout_s: float | None) -> list[str]:
    """Return the command that runs one point, wherever it is started."""
    limit = [] if timeout_s is None else ["--timeout", f"{timeout_s:g}"]
    return [sys.executable, "-m", "llmsys_exp.sweeps.running.job", str(folder), str(number), *limit]


def slots_needed(leases: Leases, jobs: int | None) -> Callable[[Sequence[str]], int]:
    """Return what tells how many slots a job takes: its GPUs, or its share of the cores."""
    if any(slot.name.startswith("core-") for slot in leases.slots):
        share = max(1, len(leases.slots) // (jobs or 1))
        return lambda overrides: share
    known: dict[tuple[str, ...], int] = {}

    def gpus(overrides: Sequence[str]) -> int:
        key = tuple(overrides)
        if key not in known:
            known[key] = _gpus_of(key)
        return known[key]

    return gpus


def _gpus_of(overrides: Sequence[str]) -> int:
    if overrides and Path(overrides[-1]).is_dir():  # a recorded run that is to be done again
        from llmsys_exp.reproduce.sweep import gpus_of

        return gpus_of(overrides[-1])
    from llmsys_exp.config.compose import compose_config

    hardware = compose_config(overrides).hardware
    if hardware.nodes > 1:
        raise UserError(
            "This sweep runs on one machine, and a point asks for several",
            where=f"hardware.nodes={hardware.nodes}",
            do="Set hardware.nodes=1",
        )
    return 0 if hardware.gpu == "cpu" else hardware.gpus_per_node
