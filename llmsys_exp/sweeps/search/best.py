"""Where a search stands: the best points so far, what was turned down, and which settings matter."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, PointState
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.points.sweep_file import sweep_of
from llmsys_exp.sweeps.search.asked import Objective, Search


@dataclass(frozen=True)
class Standing:
    """Where a search stands.

    Attributes:
        search: what it looks for.
        best: numbers of the best points; of several objectives all that no other point beats in each.
        values: of each point that has them, one for each objective.
        turned_down: suggestions that do not fit, counted by what was said of them.
        commands: how each of the best is run again, by number.
        is_left: whether it is to add further points.
        ended: why it adds none although some are missing; empty where it is not so.
    """

    search: Search
    best: tuple[int, ...]
    values: Mapping[int, Sequence[float]]
    turned_down: Mapping[str, int]
    commands: Mapping[int, str]
    is_left: bool
    ended: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "objectives": [vars(one) for one in self.search.objectives],
            "trials": self.search.trials,
            "best": [
                {"point": number, "values": list(self.values[number]), "command": self.commands[number]}
                for number in self.best
            ],
            "rejected": dict(self.turned_down),
            "ended": self.ended or None,
        }


def standing(sweep: Sweep, ledger: SearchLedger) -> Standing:
    """Read from the ledger where a search stands."""
    search = search_of(sweep)
    states = ledger.states()
    values = {number: found for number, now in states.items() if (found := _values(now)) is not None}
    best = best_of(values, search.objectives)
    turned_down = Counter(one.kind for one in ledger.suggestions if one.number is None)
    commands = {
        number: shlex.join(
            ["llmsys", sweep.verb, *sweep.overrides(sweep.points[number - 1], states[number].overrides)]
        )
        for number in best
    }
    ended = ledger.ended or {"what": "", "complete": False}
    is_left = len(states) < search.trials and not ended["complete"]
    told = dict(turned_down.most_common())
    return Standing(search, best, values, told, commands, is_left, ended["what"])


def search_of(sweep: Sweep) -> Search:
    """Return what a sweep looks for."""
    found = sweep_of(sweep.search or {}, "sweep.json").search
    assert found is not None  # the caller has looked
    return found


def best_of(values: Mapping[int, Sequence[float]], objectives: Sequence[Objective]) -> tuple[int, ...]:
    """Return the points that no other one beats; of equal ones the first.

    >>> minimize, maximize = Objective("loss", "minimize"), Objective("tokens_per_s", "maximize")
    >>> best_of({1: [2.0], 2: [1.5], 3: [1.5]}, [minimize])
    (2,)
    >>> best_of({1: [2.0, 9.0], 2: [1.5, 8.0], 3: [1.6, 7.0]}, [minimize, maximize])
    (1, 2)
    """
    lower = {
        number: tuple(value * one.sign for value, one in zip(found, objectives, strict=True))
        for number, found in values.items()
    }
    kept: list[int] = []
    for number in sorted(lower, key=lambda one: (lower[one], one)):
        if not any(all(map(float.__le__, lower[other], lower[number])) for other in kept):
            kept.append(number)
    return tuple(sorted(kept))


def _values(now: PointState) -> Sequence[float] | None:
    found = now.fields.get("values")
    if now.state != DONE or not found or not all(isinstance(one, (int, float)) for one in found):
        return None
    return [float(one) for one in found]
