"""Progress of a sweep: a line for each point that comes into another state, and one for all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmsys_exp.report.console import duration
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import LOST, PLANNED, RUNNING, PointState
from llmsys_exp.sweeps.running.left import time_left, told


class Progress:
    """Tells what is new since it was last asked."""

    def __init__(self, sweep: Sweep, states: Mapping[int, PointState], say: Callable[[str], None]) -> None:
        """Begin to tell; nothing is said of `states`, which are those at the start."""
        self._sweep, self._say = sweep, say
        self._told = {number: (now.state, now.attempt) for number, now in states.items()}
        self._said, self._at_once = "", 1

    def tell(self, states: Mapping[int, PointState]) -> None:
        """Say a line for each point whose state is another one now, and then where all of it stands."""
        news = 0
        for number, now in states.items():
            # a search adds points one by one, each to be started at once
            is_new = number not in self._told and now.state == PLANNED
            if is_new or self._told.get(number) == (now.state, now.attempt):
                continue
            self._told[number] = (now.state, now.attempt)
            news += 1
            self._say(f"{self._counted(states)} point {number} {self._what(now)}")
        if news:
            self._tell_all(states)

    def _what(self, now: PointState) -> str:
        overrides = " ".join((*self._sweep.points[now.number - 1].overrides, *now.overrides))
        what = f" ({now.fields['kind']}: {now.fields.get('what', '')})" if "kind" in now.fields else ""
        ended = now.state not in (PLANNED, LOST, RUNNING) and not what
        took = f" in {duration(now.fields['seconds'])}" if ended and "seconds" in now.fields else ""
        return f"{now.state}{what}{took}: {overrides}"

    def _counted(self, states: Mapping[int, PointState]) -> str:
        ended = sum(now.state not in (PLANNED, LOST, RUNNING) for now in states.values())
        return f"[{ended} of {max(len(states), self._sweep.expected)}]"

    def _tell_all(self, states: Mapping[int, PointState]) -> None:
        """Say one line of the whole sweep while points are left, unless it was said already."""
        running = sum(now.state == RUNNING for now in states.values())
        # between the end of one and the start of the next there is one less
        self._at_once = max(self._at_once, running)
        line = told(self._sweep, states, time_left(self._sweep, states, at_once=self._at_once))
        if line != self._said and " left" in line:
            self._said = line
            self._say(f"  {line}")
