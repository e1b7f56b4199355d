"""Gives a runner the next point of a search when it has room for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, PRUNED, PointState
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.ledger.settle import AGAIN
from llmsys_exp.sweeps.points.sweep_file import sweep_of
from llmsys_exp.sweeps.search.feasible import Feasible, Params
from llmsys_exp.sweeps.search.metrics import figures_there
from llmsys_exp.sweeps.search.pruning import Pruning
from llmsys_exp.sweeps.search.study import DIVERGED, TOO_LARGE, Asking, require_optuna, trials_of

MOST_FAILURES = 3
"""Points that failed before any is done, and not for want of memory: so will the next."""
MOST_ASKS = 100
"""Suggestions in a row that do not fit or were there before; then the search is given up."""

ALL_TRIED = "all settings that fit were tried"


class Supply:
    """The points of one search, as they are wanted."""

    def __init__(self, sweep: Sweep, say: Callable[[str], None]) -> None:
        """Take up a search where its ledger has it.

        Args:
            sweep: the sweep.
            say: where it is told why a search ends early.

        Raises:
            UserError: where Optuna is not installed.
        """
        require_optuna()
        read = sweep_of(sweep.search or {}, "sweep.json")
        assert read.search is not None
        self._sweep, self._say, self._search = sweep, say, read.search
        self._feasible = Feasible(read, sweep.base, sweep.verb)
        self._planned = [one.key for one in self._feasible.planned()]
        listed = self._feasible.listed()
        self._may = None if listed is None else {tuple(one.values()) for one in listed[0]}
        self._pruning = Pruning(read.search)
        self._ended, self._in_vain = False, 0

    def add(self, ledger: SearchLedger) -> bool:
        """Add a point or what was turned down to the ledger; return whether more may come.

        One suggestion is judged at a time, which takes seconds near the limit: the runner looks around then.
        """
        states = ledger.states()
        if self._ended or len(states) >= self._sweep.expected:
            return False
        why = _all_fail(states) or self._lacking(states) or self._suggest(ledger, states)
        if why:
            self._ended = True
            self._say(f"The search ends after {len(states)} points: {why}")
            ledger.end(why, complete=why == ALL_TRIED)
        return not why

    def prune(self, ledger: SearchLedger) -> None:
        """Ask runs to stop that are not worth going on with."""
        self._pruning.look(ledger)

    def _suggest(self, ledger: SearchLedger, states: Mapping[int, PointState]) -> str:
        """Add what is suggested next; return why there is nothing to add."""
        place = len(ledger.suggestions)
        if self._in_vain < MOST_ASKS:
            last: Params = {}
            for params in Asking(self._search, trials_of(ledger.suggestions, states)).suggestions(MOST_ASKS):
                if self._take(ledger, params):
                    return ""
                last = params
            if any(self._take(ledger, params) for params in self._others(last, place)):
                return ""
            if self._may is not None:
                return ALL_TRIED
        against = [one.what for one in ledger.suggestions if one.number is None]
        why = f".  The last one that does not fit {against[-1]}" if against else ""
        return f"{MOST_ASKS} suggestions in a row came to nothing{why}.  Begin a new one with other ranges"

    def _take(self, ledger: SearchLedger, params: Params) -> bool:
        """Make a point of a suggestion that fits, or note that it does not; False where it is passed over."""
        combination = tuple(params[key] for key in self._planned)
        if self._may is not None and combination not in self._may:
            return False
        judged = self._feasible.judge(params)
        if judged.excluded or judged.key in {point.key for point in self._sweep.points}:
            return False
        if judged.excess:
            if self._may is not None:
                self._may.discard(combination)
            self._in_vain += 1
            told = {"what": judged.what, "kind": judged.kind, "excess": round(judged.excess, 6)}
            ledger.reject({"params": params, **told})
            return True
        self._in_vain = 0
        added = {"key": judged.key, "overrides": judged.overrides, "params": params}
        return ledger.add(len(self._sweep.points) + 1, {**added, "forecast": judged.forecast})

    def _others(self, last: Params, place: int) -> Iterator[Params]:
        """Go through settings that may fit, in an order that depends on the seed and the place alone."""
        if self._may is None:
            return
        order = random.Random(f"{self._search.seed}/{place}")
        may = sorted(self._may, key=repr)
        free = [one for one in self._search.space if one.key not in self._planned]
        columns = [list(one.values() or (last[one.key],)) for one in free]
        for column in (may, *columns):
            order.shuffle(column)
        for chosen, *rest in product(may, *columns):
            found = dict(zip(self._planned, chosen, strict=True))
            found |= {one.key: value for one, value in zip(free, rest, strict=True)}
            yield {one.key: found[one.key] for one in self._search.space}

    def _lacking(self, states: Mapping[int, PointState]) -> str:
        """Say that an objective is no figure of these runs: the first one that is done shows it."""
        done = [now for now in states.values() if now.state == DONE and now.fields.get("values")]
        for place, objective in enumerate(self._search.objectives):
            if done and all(now.fields["values"][place] is None for now in done):
                there = ", ".join(figures_there(Path(done[0].fields["folder"]))) or "no metric at all"
                return f"no run has {objective.metric} among its results.  Point {done[0].number} has {there}"
        return ""


def _all_fail(states: Mapping[int, PointState]) -> str:
    """Say that the points fail for a reason that other settings would not mend."""
    failed = [now for now in states.values() if now.state == FAILED]
    told = [now for now in failed if now.fields.get("kind") not in TOO_LARGE | DIVERGED | AGAIN]
    if len(told) < MOST_FAILURES or any(now.state in (DONE, PRUNED) for now in states.values()):
        return ""
    fields = told[-1].fields
    return f"{len(told)} failed and none is done, the last one by {fields.get('kind')}: {fields.get('what')}"
