"""Jobs on Ray whose driver, worker or node is gone: they save and end, and their points start again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llmsys_exp.launch.stopping import SAVING_GRACE_S
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import FAILED, PLANNED, RUNNING, PointState
from llmsys_exp.sweeps.ledger.settle import end_gone, settle
from llmsys_exp.sweeps.ray.cluster import check_cluster, nodes
from llmsys_exp.sweeps.ray.task import end_lost, node_of
from llmsys_exp.sweeps.running.job import STOPPED
from llmsys_exp.sweeps.running.processes import is_alive

NODE_GRACE_S = 30.0
"""How long a job may still save whose node is gone from the cluster, before its point starts elsewhere."""


class Orphans:
    """Sees to jobs that no task watches, through tasks of their nodes that end them."""

    def __init__(self, paths: SweepPaths, sweep: Sweep, tasks: Mapping[int, Any]) -> None:
        """Prepare to see to the jobs of a sweep.

        Args:
            paths: its files.
            sweep: the sweep.
            tasks: what watches a job, by its point; the caller changes it as they come and go.
        """
        import ray

        self.ending: dict[int, Any] = {}
        """Tasks that end a job, by its point."""
        self.address = ""
        """Of the cluster."""
        self._ray = ray
        self._paths, self._sweep, self._tasks = paths, sweep, tasks
        self._ledger = sweep.ledger(paths)
        self._end_lost = ray.remote(max_retries=0, num_cpus=0)(end_lost)
        self._known: set[int] = set()
        self._gone_since: dict[int, float] = {}

    def adopt(self, numbers: set[int]) -> None:
        """Plan these points again once their jobs have stopped."""
        self._known |= numbers

    def nodes(self) -> dict[str, Any]:
        """Return the living nodes; a cluster that is gone is known before Ray waits for it a minute.

        Raises:
            UserError: when the cluster is gone.
        """
        check_cluster(self.address)
        return nodes()

    def end_on(self, node: str, number: int, wait_s: float, failure: tuple[str, str] | None) -> None:
        """Have a node end the job of a point, after the time that it may take to save."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        task = self._end_lost.options(scheduling_strategy=there)
        self.ending[number] = task.remote(str(self._paths.folder), number, wait_s, failure)

    def collect(self, ready: list[int]) -> None:
        """Take note of jobs that were ended."""
        for number in ready:
            reference = self.ending.pop(number)
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError:
                pass  # the node went too: `look` asks again
            else:
                self.settled(number)

    def look(self, states: dict[int, PointState]) -> None:
        """See to points that run without a task of ours, and to those that no longer run."""
        for number, now in list(states.items()):
            if now.state == RUNNING and number not in (*self._tasks, *self.ending):
                self._mind(number, now)
            elif number in self._known and now.state != RUNNING and number not in self._tasks:
                self.settled(number)

    def settled(self, number: int) -> None:
        """Plan a point again that was stopped because its worker was gone, and not because anybody asked."""
        now = self._ledger.states()[number]
        if number in self._known and now.state == FAILED and now.fields.get("kind") == STOPPED:
            self._ledger.move(number, PLANNED)
        self._known.discard(number)

    def waited_for(self, states: dict[int, PointState]) -> int:
        """Count points that run without a task of ours and whose ends we will see."""
        return len(self.ending) + sum(
            now.state == RUNNING
            and number not in (*self._tasks, *self.ending)
            and (node_of(now) is not None or is_alive(now.fields) is not None)
            for number, now in states.items()
        )

    def _mind(self, number: int, now: PointState) -> None:
        """See to a point that runs and has no task: its driver, worker or node is gone."""
        alive, node = is_alive(now.fields), node_of(now)
        if alive is False:
            settle(self._sweep, self._ledger, number)
        if alive is not None or node is None:
            return
        if node in self.nodes():
            self.end_on(node, number, SAVING_GRACE_S, None)
        elif time.monotonic() - self._gone_since.setdefault(number, time.monotonic()) > NODE_GRACE_S:
            self._gone_since.pop(number)
            end_gone(self._ledger, number)
