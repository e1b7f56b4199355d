"""How large the jobs of a sweep are: what their settings ask of one machine, known before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, PointState
from llmsys_exp.sweeps.points.composing import Composer
from llmsys_exp.sweeps.points.settings import one_setting
from llmsys_exp.sweeps.running.lease import Leases

CPU, TRAIN = "cpu", "train"


@dataclass(frozen=True)
class JobSize:
    """What one job takes."""

    gpus: int
    ranks: int
    """Processes that train or answer, with GPUs or without."""


class JobSizes:
    """Tells the sizes of a sweep's jobs; Hydra composes once for each choice of groups."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._composer = sweep, Composer(sweep.base)
        self._known: dict[tuple[str, ...], JobSize] = {}

    def of(self, now: PointState) -> JobSize:
        """Return the size of a point's job.

        Raises:
            UserError: for one that spans machines.
        """
        own = (*self._sweep.points[now.number - 1].overrides, *now.overrides)
        if own not in self._known:
            self._known[own] = self._size(own)
        return self._known[own]

    def left(self, states: dict[int, PointState]) -> dict[JobSize, int]:
        """Return the sizes of what is left to run, each with the first point that has it."""
        found: dict[JobSize, int] = {}
        for number, now in states.items():
            if now.state in (PLANNED, LOST):
                found.setdefault(self.of(now), number)
        return found

    def _size(self, overrides: Sequence[str]) -> JobSize:
        resolved = self._composer.resolve([one_setting(text) for text in overrides])
        nodes, ranks = resolved.value("hardware.nodes"), int(resolved.value("hardware.gpus_per_node"))
        if nodes > 1:
            raise UserError(
                "A point of this sweep asks for several machines, and here each runs on one",
                where=f"hardware.nodes={nodes}",
                do="Set hardware.nodes=1, or run it with --slurm",
            )
        return JobSize(0 if resolved.value("hardware.gpu") == CPU else ranks, ranks)


def check_room(leases: Leases, sizes: Mapping[JobSize, int], verb: str) -> None:
    """Refuse a point that needs more GPUs than this machine will ever have free.

    Raises:
        UserError: naming the point.
    """
    gpus = sum(slot.name.startswith("gpu-") for slot in leases.slots)
    if not gpus and verb != TRAIN:
        return  # a server that answers may be anywhere
    for size, number in sizes.items():
        if size.gpus > gpus:
            raise UserError(
                f"Point {number} needs {size.gpus} {'GPU' if size.gpus == 1 else 'GPUs'}, "
                f"and this machine offers {gpus}",
                why="It would wait for ever",
                do="Ask for fewer with hardware.gpus_per_node, or run the sweep elsewhere: --slurm, --ray",
            )
