"""Runs the points of a sweep as tasks of Ray: all are handed over at once, and Ray's scheduler decides.

The ledger stays the one truth. A task claims its point in it as any other job does, so that a point whose
task is handed over twice runs once. When this process ends, Ray ends its tasks, and their jobs save.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from llmsys_exp.errors import UserError
from llmsys_exp.launch.failure import OOM_HOST, OTHER
from llmsys_exp.launch.process import GRACE_S
from llmsys_exp.launch.stopping import SAVING_GRACE_S
from llmsys_exp.runs.files import write_json
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import FAILED, LOST, PLANNED, RUNNING, PointState
from llmsys_exp.sweeps.ledger.settle import AGAIN, check_disk, found_full
from llmsys_exp.sweeps.ray.cluster import answers, check_cluster, wanted
from llmsys_exp.sweeps.ray.files import cancel_file, driver_file
from llmsys_exp.sweeps.ray.options import RayOptions
from llmsys_exp.sweeps.ray.orphans import Orphans
from llmsys_exp.sweeps.ray.task import node_of, run_point
from llmsys_exp.sweeps.running.job import STOPPED
from llmsys_exp.sweeps.running.processes import ask, identity
from llmsys_exp.sweeps.running.progress import Progress
from llmsys_exp.sweeps.running.runner import MOST_STARTS, RunOptions
from llmsys_exp.sweeps.running.signals import Signals
from llmsys_exp.sweeps.running.size import JobSizes

LOOK_S = 0.5
ASK_S = 5.0
"""How often the head of the cluster is asked whether it is there."""
MOST_HANDED = 1000
"""Tasks in Ray's queue at a time."""
MOST_CRASHES = 3
"""A worker that dies as often under a point, on nodes that live, will die under it again."""


class RayRunner:
    """Runs what is left of a sweep; hold `runs.lock.locked` on its lock file meanwhile."""

    def __init__(
        self,
        paths: SweepPaths,
        sweep: Sweep,
        options: RunOptions,
        *,
        ray_options: RayOptions,
        say: Callable[[str], None],
    ) -> None:
        """Prepare to run a sweep in the cluster that this process is connected to.

        Args:
            paths: its files.
            sweep: the sweep.
            options: how it is run.
            ray_options: what a point takes of the cluster.
            say: where progress goes.
        """
        import ray

        self._ray = ray
        self._paths, self._sweep, self._options, self._say = paths, sweep, options, say
        self._ray_options, self._sizes = ray_options, JobSizes(sweep)
        self._ledger = sweep.ledger(paths)
        # 0: a worker takes one point after the other, also with GPUs, as it never touches them itself
        self._run = ray.remote(max_retries=0, max_calls=0)(run_point)
        self._tasks: dict[int, Any] = {}
        self._orphans = Orphans(paths, sweep, self._tasks)
        self._starts: Counter[int] = Counter()
        self._crashes: Counter[int] = Counter()
        self._progress = Progress(sweep, {}, say)
        self._signals = Signals()
        self._address = ""

    def run(self, address: str) -> dict[int, PointState]:
        """Run until nothing is left to run, and return the states.

        Args:
            address: of the cluster, for those who look at the sweep.

        Raises:
            UserError: when a node cannot run points at all, the cluster is gone, or the disk is full.
            KeyboardInterrupt: when asked to stop; every job has ended then, and all can be resumed.
        """
        self._address = self._orphans.address = address
        cancel_file(self._paths).unlink(missing_ok=True)
        write_json(driver_file(self._paths), {"address": address, **identity()})
        states = self._ledger.states()
        self._progress = Progress(self._sweep, states, self._say)
        # what a driver before us has left ends by itself, and is ours then
        self._orphans.adopt({at for at, now in states.items() if now.state == RUNNING and node_of(now)})
        with self._signals:
            try:
                states = self._loop()
            finally:
                if answers(address) and (self._tasks or self._signals.count):
                    self._stop()
        if self._signals.count and not self._has_failed_fast(states):
            raise KeyboardInterrupt
        return self._look()

    def _loop(self) -> dict[int, PointState]:
        asked_at = time.monotonic()
        while True:
            if time.monotonic() - asked_at > ASK_S:
                asked_at = time.monotonic()
                check_cluster(self._address)
            self._collect()
            states = self._look()
            if cancel_file(self._paths).exists() or self._has_failed_fast(states):
                self._signals.count = max(self._signals.count, 1)
            if self._signals.count:
                return states
            if not (self._hand_over(states) or self._tasks or self._orphans.waited_for(states)):
                check_disk(states, self._starts)
                return states
            self._pause(LOOK_S)

    def _hand_over(self, states: dict[int, PointState]) -> bool:
        """Hand what is left to Ray; return whether there was anything."""
        if found_full(states, self._starts) is not None:
            for reference in self._tasks.values():
                self._ray.cancel(reference)
            return False
        waiting = [
            number
            for number, now in states.items()
            if now.state in (PLANNED, LOST)
            and number not in (*self._tasks, *self._orphans.ending)
            and self._crashes[number] < MOST_CRASHES
        ]
        room = (self._options.jobs or MOST_HANDED) - len(self._tasks) - self._orphans.waited_for(states)
        for number in waiting[: max(0, room)]:
            asked = wanted(self._sizes.of(states[number]), self._ray_options)
            task = self._run.options(name=f"{self._sweep.name} {number}", **asked)
            self._starts[number] += 1
            self._tasks[number] = task.remote(str(self._paths.folder), number, self._options.timeout_s)
        return bool(waiting)

    def _collect(self) -> None:
        """Take note of tasks that have ended."""
        for number in self._ready(self._tasks):
            self._take(number, self._tasks.pop(number))
        self._orphans.collect(self._ready(self._orphans.ending))

    def _take(self, number: int, reference: Any) -> None:
        errors = self._ray.exceptions
        try:
            told = self._ray.get(reference)
        except errors.TaskCancelledError:
            return
        except errors.RayTaskError as error:
            raise UserError(
                "A node of the Ray cluster cannot run points",
                why=str(error.cause).partition("\n")[0],
                do="Install the same llmsys-exp there, and give all nodes the same Python",
            ) from None
        except errors.OutOfMemoryError:
            self._crashed(number, (OOM_HOST, "Ray ended its worker because main memory of the node ran out"))
        except errors.RayError:
            self._crashed(number, None)
        else:
            if "refused" in told:
                raise UserError(
                    f"Node {told['node']} of the Ray cluster cannot run points: {told['refused']}",
                    why="All nodes need the sweep's folder, the data and the models under the same names",
                    do="Give paths.outputs a folder that all nodes share",
                )
            self._orphans.settled(number)
            if self._ledger.states()[number].state in (PLANNED, LOST):
                self._give_up(number, told["code"])

    def _give_up(self, number: int, code: int | None) -> None:
        """Call a point failed whose command ends again and again before it claims the point."""
        if self._starts[number] >= MOST_STARTS and self._ledger.move(number, RUNNING):
            what = f"Its command ended with exit code {code} before it began"
            self._ledger.move(number, FAILED, kind=OTHER, what=what)

    def _crashed(self, number: int, failure: tuple[str, str] | None) -> None:
        """Take note of a point whose worker is gone; its job, which is told by that, saves and ends."""
        now = self._ledger.states()[number]
        node = node_of(now)
        if now.state not in (RUNNING, FAILED) or node is None:
            self._crashes[number] += 1
            return
        there = node in self._orphans.nodes()
        # a node that went away says nothing of the point
        self._crashes[number] += there
        self._orphans.adopt({number})
        if there and now.state == RUNNING:
            self._orphans.end_on(node, number, 0.0 if failure else SAVING_GRACE_S, failure)

    def _look(self) -> dict[int, PointState]:
        """Read the ledger, mind what runs without a task of ours, and tell what is new."""
        self._orphans.look(self._ledger.states())
        states = self._ledger.states()
        self._progress.tell(states)
        return states

    def _has_failed_fast(self, states: dict[int, PointState]) -> bool:
        return self._options.fail_fast and any(
            states[number].state == FAILED and states[number].fields.get("kind") not in AGAIN
            for number in self._starts
        )

    def _stop(self) -> None:
        """Take what waits out of Ray's queue, ask every job to stop, and end what does not."""
        for reference in self._tasks.values():
            self._ray.cancel(reference)
        for number, now in self._ledger.states().items():
            if now.state == RUNNING and number not in self._tasks:
                ask(now.fields)
        self._wait_for_ends(SAVING_GRACE_S, until=lambda: self._signals.count > 1)
        if not self._tasks and not self._orphans.waited_for(self._ledger.states()):
            return
        for reference in self._tasks.values():
            self._ray.cancel(reference, force=True)
        for number, now in self._ledger.states().items():
            node = node_of(now)
            if now.state == RUNNING and node in self._orphans.nodes():
                self._orphans.end_on(str(node), number, 0.0, (STOPPED, "Stopped from outside, twice"))
        self._wait_for_ends(3 * GRACE_S, until=lambda: False)

    def _wait_for_ends(self, wait_s: float, *, until: Callable[[], bool]) -> None:
        end = time.monotonic() + wait_s
        while time.monotonic() < end and not until():
            self._collect()
            states = self._look()
            if not self._tasks and not self._orphans.waited_for(states):
                return
            self._pause(0.1)

    def _ready(self, tasks: dict[int, Any]) -> list[int]:
        if not tasks:
            return []
        references = list(tasks.values())
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [number for number, reference in tasks.items() if reference in set(ready)]

    def _pause(self, wait_s: float) -> None:
        """Wait until a task has ended, and no longer than that."""
        references = [*self._tasks.values(), *self._orphans.ending.values()]
        if references:
            self._ray.wait(references, num_returns=1, timeout=wait_s)
        else:
            time.sleep(wait_s)
