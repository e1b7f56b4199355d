"""Stops runs of a search that are worse than the median of those before at the same step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.sweeps.ledger.ledger import DONE, RUNNING, PointState
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.running.processes import ask
from llmsys_exp.sweeps.search.asked import Search
from llmsys_exp.sweeps.search.metrics import EVALUATED, METRICS, TRAINED, curve_of
from llmsys_exp.sweeps.search.study import Trial, should_stop, trial_of

Curves = dict[str, dict[int, float]]


class Pruning:
    """Looks at running points again and again; each is asked to stop once by one process."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._done: dict[tuple[int, int], Curves] = {}
        self._looked: dict[tuple[int, int], int] = {}
        self._asked: set[tuple[int, int]] = set()

    def look(self, ledger: SearchLedger) -> None:
        """Ask those to stop that the pruner says, after the ledger has it."""
        if self._search.pruner is None:
            return
        states = ledger.states()
        params = {one.number: one.params for one in ledger.suggestions if one.number is not None}
        for now in list(states.values()):
            attempt = now.number, now.attempt
            if now.state != RUNNING or now.overrides or attempt in self._asked:
                continue
            # what a runner before has written down and perhaps not said
            told = "pruning" in now.fields
            stop = None if told else self._worse(now, states, params)
            # written before it is asked, so that its end is known for what it is
            if told or (
                stop is not None and ledger.move(now.number, RUNNING, attempt=now.attempt, pruning=stop)
            ):
                self._asked.add(attempt)
                ask(now.fields)

    def _worse(
        self, now: PointState, states: Mapping[int, PointState], params: Mapping[int, Any]
    ) -> dict[str, Any] | None:
        """Return step and value at which a run is not worth going on with."""
        assert self._search.pruner is not None
        done = {
            number: other
            for number, other in states.items()
            if other.state == DONE and trial_of(params[number], other).state == "COMPLETE"
        }
        if len(done) < self._search.pruner.startup_trials or "folder" not in now.fields:
            return None
        own = curve_of(Path(now.fields["folder"]))
        others = {number: self._curves(other) for number, other in done.items()}
        name = self._name([own, *others.values()])
        step = max(own[name], default=0)
        last = max((max(other[name], default=0) for other in others.values()), default=0)
        # a run that has come to the last step is as good as done
        if step <= self._looked.get((now.number, now.attempt), 0) or step >= last:
            return None
        self._looked[now.number, now.attempt] = step
        trials = [
            Trial(params[number], "COMPLETE", other.fields["values"], others[number][name])
            for number, other in done.items()
        ]
        if not should_stop(self._search, trials, Trial(params[now.number], "RUNNING", curve=own[name])):
            return None
        value = own[name][step]
        what = f"Stopped at step {step}: {name} {value:.6g} is worse than the median"
        return {"step": step, "value": value if math.isfinite(value) else None, "what": what}

    def _name(self, curves: Sequence[Curves]) -> str:
        """Return which loss is compared: that of held-out rows where runs tell it before their end."""
        wanted = METRICS[self._search.objectives[0].metric].curve
        told_midway = any(len(one[EVALUATED]) > 1 for one in curves)
        return EVALUATED if wanted == EVALUATED and told_midway else TRAINED

    def _curves(self, now: PointState) -> Curves:
        """Return the curves of a run that is done, read once."""
        key = now.number, now.attempt
        if key not in self._done:
            self._done[key] = curve_of(Path(now.fields["folder"]))
        return self._done[key]
