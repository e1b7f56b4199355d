"""Progress of a sweep: a line for each point that comes into another state, and how long is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from llmsys_exp.report.console import duration
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, RUNNING, PointState


class Progress:
    """Tells what is new since it was last asked."""

    def __init__(self, sweep: Sweep, states: Mapping[int, PointState], say: Callable[[str], None]) -> None:
        """Begin to tell; nothing is said of `states`, which are those at the start."""
        self._sweep, self._say = sweep, say
        self._told = {number: (now.state, now.attempt) for number, now in states.items()}
        self._began, self._ended_before = time.monotonic(), _ended(states)

    def tell(self, states: Mapping[int, PointState]) -> None:
        """Say a line for each point whose state is another one now."""
        for number, now in states.items():
            if self._told.get(number) == (now.state, now.attempt):
                continue
            self._told[number] = (now.state, now.attempt)
            overrides = " ".join((*self._sweep.points[number - 1].overrides, *now.overrides))
            what = f" ({now.fields['kind']}: {now.fields.get('what', '')})" if "kind" in now.fields else ""
            self._say(f"{self._counted(states)} point {number} {now.state}{what}: {overrides}")

    def _counted(self, states: Mapping[int, PointState]) -> str:
        """Say how many points have ended, and when the others will have at the pace so far."""
        ended, total = _ended(states), len(states)
        here = ended - self._ended_before
        if not here or ended == total:
            return f"[{ended} of {total}]"
        left_s = (time.monotonic() - self._began) / here * (total - ended)
        return f"[{ended} of {total}, {duration(left_s)} left]"


def _ended(states: Mapping[int, PointState]) -> int:
    return sum(now.state not in (PLANNED, LOST, RUNNING) for now in states.values())
