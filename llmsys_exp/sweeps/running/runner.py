"""Runs the points of a sweep on this machine, each in a process group of its own with a lease of its own.

Jobs do not need the runner: they write their own ends, and go on when it is killed. The next one finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmsys_exp.errors import UserError
from llmsys_exp.launch.failure import OTHER
from llmsys_exp.launch.process import GRACE_S
from llmsys_exp.launch.stopping import SAVING_GRACE_S
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import FAILED, LOST, PLANNED, RUNNING, Ledger, PointState
from llmsys_exp.sweeps.ledger.settle import AGAIN, check_disk, found_full, is_gone, settle, settle_all
from llmsys_exp.sweeps.running.lease import Leases
from llmsys_exp.sweeps.running.processes import ask, end_point, is_alive
from llmsys_exp.sweeps.running.progress import Progress
from llmsys_exp.sweeps.running.signals import Signals
from llmsys_exp.sweeps.running.start import Child, start_job

POLL_S = 0.03
LOOK_S = 0.5
"""How often the ledger is looked at for what others wrote."""
MOST_STARTS = 3
"""A command that ends as often before it has claimed its point will not do better."""


@dataclass(frozen=True)
class RunOptions:
    """How a sweep is run.

    Attributes:
        jobs: how many at a time at most; None: as many as find GPUs, and one on a machine without.
        timeout_s: how long a point may take.
        fail_fast: stop the sweep when a point fails.
        pack: let jobs share a card whose forecasts together are below its memory.
        slurm: options of Slurm, which runs the points in place of this machine; None: it does not.
        ray: options of Ray, likewise.
    """

    jobs: int | None = None
    timeout_s: float | None = None
    fail_fast: bool = False
    pack: bool = False
    slurm: str | None = None
    ray: str | None = None


class Supply(Protocol):
    """What adds points to a sweep while it runs."""

    def add(self, ledger: Ledger) -> bool:
        """Add a point; return whether there was one to add."""
        ...

    def prune(self, ledger: Ledger) -> None:
        """Ask runs to stop that are not worth going on with."""
        ...


class Runner:
    """Runs what is left of a sweep; hold `runs.lock.locked` on its lock file meanwhile."""

    supply: Supply | None = None
    """Adds points where the sweep is a search."""

    def __init__(
        self,
        paths: SweepPaths,
        sweep: Sweep,
        options: RunOptions,
        *,
        leases: Leases,
        needs: Callable[[Sequence[str]], int],
        say: Callable[[str], None],
    ) -> None:
        """Prepare to run a sweep.

        Args:
            paths: its files.
            sweep: the sweep.
            options: how it is run.
            leases: what this machine has.
            needs: from the overrides of a point to how many slots its job takes.
            say: where progress goes.
        """
        self._paths, self._sweep, self._options = paths, sweep, options
        self._leases, self._needs, self._say = leases, needs, say
        self._ledger = sweep.ledger(paths)
        self._children: dict[int, Child] = {}
        self._starts: dict[int, int] = {}
        self._progress = Progress(sweep, {}, say)
        self._signals = Signals()
        self._no_room_until = 0.0
        self._told_waiting = False

    def run(self) -> dict[int, PointState]:
        """Run until nothing is left to run, and return the states.

        Raises:
            KeyboardInterrupt: when asked to stop; every job has ended then, and all can be resumed.
            UserError: when the disk is full and points are left.
        """
        settle_all(self._sweep, self._ledger)
        states = self._ledger.states()
        self._progress = Progress(self._sweep, states, self._say)
        with self._signals:
            looked = 0.0
            while True:
                ended = self._collect()
                if ended or time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    states = self._look()
                    if self._options.fail_fast and self._has_failure(states):
                        self._signals.count = max(self._signals.count, 1)
                if self._signals.count:
                    break
                if not self._start(states) and not self._running(states):
                    check_disk(states, self._starts)
                    return states
                time.sleep(POLL_S)
            self._stop()
        states = self._look()
        if self._options.fail_fast and self._has_failure(states):
            return states
        raise KeyboardInterrupt

    def _collect(self) -> bool:
        """Take note of children that have ended."""
        ended = [number for number, child in self._children.items() if child.process.poll() is not None]
        for number in ended:
            child = self._children.pop(number)
            self._no_room_until = 0.0
            settle(self._sweep, self._ledger, number, failure=child.failure())
            if self._ledger.states()[number].state in (PLANNED, LOST):
                self._give_up(number, child.process.returncode)
        return bool(ended)

    def _give_up(self, number: int, code: int) -> None:
        """Call a point failed whose command ends again and again before it claims the point."""
        if self._starts[number] < MOST_STARTS:
            return
        if self._ledger.move(number, RUNNING):
            what = f"Its command ended with exit code {code} before it began"
            self._ledger.move(number, FAILED, kind=OTHER, what=what)

    def _look(self) -> dict[int, PointState]:
        """Read the ledger, settle what is gone without our knowing, and tell what is new."""
        states = self._ledger.states()
        for number, now in states.items():
            if number not in self._children and is_gone(now):
                settle(self._sweep, self._ledger, number)
        self._progress.tell(states)
        if self.supply is not None:
            self.supply.prune(self._ledger)
        return states

    def _has_failure(self, states: dict[int, PointState]) -> bool:
        return any(
            states[number].state == FAILED and states[number].fields.get("kind") not in AGAIN
            for number in self._starts
        )

    def _running(self, states: dict[int, PointState]) -> bool:
        """Whether jobs run here, ours or those of a runner before; another machine's are not waited for."""
        return bool(self._children) or any(
            now.state == RUNNING and is_alive(now.fields) is not None for now in states.values()
        )

    def _start(self, states: dict[int, PointState]) -> bool:
        """Start what there is room for; return whether points are left to start."""
        if found_full(states, self._starts) is not None:
            return False
        if time.monotonic() < self._no_room_until:
            return True
        waiting = [
            number
            for number, now in states.items()
            if now.state in (PLANNED, LOST) and number not in self._children
        ]
        for number in waiting:
            if len(self._children) + self._adopted(states) >= self._most():
                break
            if not self._start_point(number, states[number]):
                break
        if waiting or self.supply is None:
            return bool(waiting)
        has_room = len(self._children) + self._adopted(states) < self._most()
        return has_room and self.supply.add(self._ledger)

    def _adopted(self, states: dict[int, PointState]) -> int:
        return sum(
            now.state == RUNNING and number not in self._children and is_alive(now.fields) is True
            for number, now in states.items()
        )

    def _most(self) -> int:
        if self._options.jobs is not None:
            return self._options.jobs
        if not any(slot.name.startswith("gpu-") for slot in self._leases.slots):
            return 1
        return self._sweep.expected if self._options.pack else len(self._leases.slots)

    def _start_point(self, number: int, now: PointState) -> bool:
        """Start a point; return whether there was room for it."""
        overrides = self._sweep.overrides(self._sweep.points[number - 1], now.overrides)
        try:
            device_bytes, host_bytes = self._takes(now)
            lease = self._leases.acquire(self._needs(overrides), device_bytes, host_bytes)
        except UserError as error:
            if self._ledger.move(number, RUNNING):
                self._ledger.move(number, FAILED, kind=error.kind, what=str(error))
            return True
        if lease is None:
            self._no_room_until = time.monotonic() + LOOK_S
            self._tell_waiting(number)
            return False
        self._starts[number] = self._starts.get(number, 0) + 1
        self._children[number] = start_job(
            self._paths, self._sweep.id, number, lease, timeout_s=self._options.timeout_s
        )
        return True

    def _tell_waiting(self, number: int) -> None:
        """Say once that nothing runs here because others have what a point needs."""
        if self._children or self._told_waiting:
            return
        self._told_waiting = True
        what = "GPUs" if any(slot.name.startswith("gpu-") for slot in self._leases.slots) else "cores"
        self._say(f"Point {number} waits: other jobs of this machine have the {what} or the memory it needs")

    def _takes(self, now: PointState) -> tuple[int | None, int | None]:
        """What a job takes of each card (None: it gets its own) and of main memory (None: unknown)."""
        if now.overrides:  # a retry's settings are not what the forecast was made for
            return None, None
        device_bytes = self._sweep.takes_bytes(now.number, "device") if self._options.pack else None
        return device_bytes, self._sweep.takes_bytes(now.number, "host")

    def _stop(self) -> None:
        """Ask every job to stop, wait as long as saving may take, and end what is left."""
        states = self._ledger.states()
        here = [now for now in states.values() if now.state == RUNNING and is_alive(now.fields)]
        for now in here:
            ask(now.fields)
        # one signal each: a second one would end a job that is about to save
        asked = {now.fields["pid"] for now in here}
        for child in self._children.values():
            if child.process.pid not in asked:
                child.process.terminate()
        until = time.monotonic() + SAVING_GRACE_S
        while self._signals.count < 2 and time.monotonic() < until:
            self._collect()
            if not self._children and not any(is_alive(now.fields) for now in here):
                return
            time.sleep(POLL_S)
        for number in {*self._children, *(now.number for now in here)}:
            end_point(self._sweep.id, number)
        until = time.monotonic() + GRACE_S
        while self._children and time.monotonic() < until:
            self._collect()
            time.sleep(POLL_S)
