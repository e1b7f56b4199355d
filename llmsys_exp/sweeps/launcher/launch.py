"""Runs the jobs of a Hydra multirun side by side, each with a lease of its own; none outlives its owner."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from llmsys_exp.launch.gpus import VISIBLE
from llmsys_exp.launch.ports import free_port
from llmsys_exp.launch.process import GRACE_S
from llmsys_exp.sweeps.launcher.child import Job, Starter
from llmsys_exp.sweeps.launcher.options import LaunchOptions, share_of
from llmsys_exp.sweeps.running.lease import Lease, variables

POLL_S = 0.02
LOOK_S = 0.5
"""How often it is looked whether somebody else has let go of a lease."""
Program = tuple[HydraContext, TaskFunction, DictConfig]

log = logging.getLogger(__name__)


def launch(
    settings: Mapping[str, Any], program: Program, job_overrides: Sequence[Sequence[str]], first: int
) -> list[JobReturn]:
    """Run jobs and return how each ended, in their order.

    Args:
        settings: those of `LaunchOptions`.
        program: what Hydra gives a launcher at its set-up.
        job_overrides: of each job.
        first: number of the first job.

    Raises:
        CompactHydraException: for what is refused before anything starts.
        Exception: what a job raised, under `fail_fast`.
    """
    setup_globals()
    config = program[2]
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    Path(str(config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    waiting = [Waiting(first + place, list(overrides)) for place, overrides in enumerate(job_overrides)]
    return Launch(LaunchOptions(**settings), program, waiting).run()


@dataclass(frozen=True)
class Waiting:
    """A job that has not begun."""

    number: int
    overrides: list[str]


class Launch:
    """One batch of jobs."""

    def __init__(self, options: LaunchOptions, program: Program, jobs: Sequence[Waiting]) -> None:
        """Look at what is asked for; nothing starts yet."""
        self._context, function, self._config = program
        self._options, self._share = options, share_of(options)
        self._starter = Starter(self._context, function)
        self._jobs = list(jobs)
        self._waiting = deque(jobs)
        self._running: list[Job] = []
        self._returned: dict[int, JobReturn] = {}
        self._ports: set[int] = set()
        self._no_room_until = 0.0
        self._told_waiting = False

    def run(self) -> list[JobReturn]:
        """Run all of them; whatever ends this ends the jobs."""
        share = self._share
        what = share.leases.slots[0].name.partition("-")[0]
        each = f"{share.slots} {what}{'s' * (share.slots != 1)}"
        log.info("Launching %d jobs, %d at a time with %s each", len(self._jobs), share.jobs, each)
        try:
            while self._waiting or self._running:
                self._collect()
                while self._start():
                    pass
                time.sleep(POLL_S)
        finally:
            self._end()
            configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        return [self._returned[job.number] for job in self._jobs]

    def _collect(self) -> None:
        for job in [one for one in self._running if one.has_ended()]:
            self._running.remove(job)
            self._no_room_until = 0.0
            returned = self._returned[job.number] = job.returned()
            if returned.status is JobStatus.FAILED:
                log.error("\t#%d failed: %s", job.number, returned._return_value)
                if self._options.fail_fast:
                    _ = returned.return_value  # raises
            else:
                log.info("\t#%d done", job.number)

    def _start(self) -> bool:
        """Start the next job; return whether there was one, and room for it."""
        full = len(self._running) >= self._share.jobs or time.monotonic() < self._no_room_until
        if full or not self._waiting:
            return False
        lease = self._share.leases.acquire(self._share.slots)
        if lease is None:
            self._no_room_until = time.monotonic() + LOOK_S
            if not (self._running or self._told_waiting):
                self._told_waiting = True
                log.info(
                    "\t#%d waits: other jobs of this machine have what it needs", self._waiting[0].number
                )
            return False
        try:
            self._start_with(lease, self._waiting[0])
        finally:
            lease.release()
        self._waiting.popleft()
        return True

    def _start_with(self, lease: Lease, job: Waiting) -> None:
        number = job.number
        what = " ".join(filter_overrides(job.overrides))
        log.info("\t#%d : %s  (%s)", number, what, ", ".join(lease.names))
        config = self._context.config_loader.load_sweep_config(self._config, job.overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        env = self._env(lease)
        self._running.append(self._starter.start(number, config, lease, env, self._options.timeout_s))

    def _env(self, lease: Lease) -> dict[str, str]:
        """What a job finds: its cards and no others, numbered as its owner numbers them, and a port."""
        env = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **variables(lease)}
        if self._share.hides_gpus:
            env[VISIBLE] = ""
        # a job may listen on its port much later, so no other job of ours is ever given it
        port = next(port for port in iter(free_port, 0) if port not in self._ports)
        self._ports.add(port)
        return {**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def _end(self) -> None:
        """Interrupt the jobs that still run, and end those that do not end by that; Ctrl-C hurries."""
        try:
            for job in self._running:
                job.ask()
            until = time.monotonic() + GRACE_S
            while any(not job.has_ended() for job in self._running) and time.monotonic() < until:
                time.sleep(POLL_S)
        finally:
            for job in self._running:
                job.kill()
                job.returned()
