"""How long a sweep still takes: forecasts of its points, scaled by how long those that are done took.

Read from ledger and forecasts alone, so that any terminal can tell. Where there is neither a forecast nor a
point that is done, nothing is known, and nothing is guessed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from llmsys_exp.report.console import duration
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.ledger.ledger import DONE, LOST, PLANNED, PRUNED, RUNNING, STATES, PointState
from llmsys_exp.sweeps.ledger.settle import is_gone

FORECAST, PACE = "forecast", "pace"
States = Mapping[int, PointState]


@dataclass(frozen=True)
class Left:
    """How long is left.

    Attributes:
        seconds: None: not known.
        by: `forecast`: of each point, scaled by those that are done; `pace`: every point takes as long as the
            average of those that are done; empty: not known.
    """

    seconds: float | None
    by: str = ""


def time_left(sweep: Sweep, states: States, *, at_once: int | None = None) -> Left:
    """Forecast when the last point of a sweep will have ended.

    Args:
        sweep: the sweep.
        states: of its points.
        at_once: how many run at a time; None: as many as do now, or as were asked for.
    """
    running = [now for now in states.values() if _state(now) == RUNNING]
    waiting = [now for now in states.values() if _state(now) in (PLANNED, LOST)]
    to_come = sweep.expected - len(states)
    if not (running or waiting or to_come):
        return Left(0.0, FORECAST)
    took, by = _durations(sweep, states, [*running, *waiting])
    if took is None:
        return Left(None)
    usual_s = sum(took.values()) / len(took) if took else _mean_s(states)
    busy = [max(0.0, took[now.number] - _elapsed_s(now)) for now in running]
    after = [took[now.number] for now in waiting] + [usual_s] * max(0, to_come)
    slots = at_once or sweep.options.get("jobs") or max(1, len(running))
    return Left(_last_end(busy, after, max(slots, len(busy))), by)


def told(sweep: Sweep, states: States, left: Left | None) -> str:
    """Say in one line where a sweep stands: `12/60 done, 3 running, 2 skipped, about 14 min left`.

    Args:
        sweep: the sweep.
        states: of its points.
        left: how long is left; None: nobody goes on with it.
    """
    found = Counter(map(_state, states.values()))
    total = max(len(states), sweep.expected)
    order = (RUNNING, *(state for state in STATES if state not in (DONE, PLANNED, RUNNING)))
    others = [f"{found[state]} {state}" for state in order if found[state]]
    parts = [f"{found[DONE]}/{total} done", *others]
    if left is not None and left.seconds is None:
        parts.append("time left unknown until one is done")
    elif left is not None and (found[RUNNING] or found[PLANNED] or found[LOST]):
        parts.append(f"about {_rough(left.seconds or 0)} left")
    return ", ".join(parts)


def _state(now: PointState) -> str:
    return LOST if is_gone(now) else now.state


def _durations(
    sweep: Sweep, states: States, open_points: Sequence[PointState]
) -> tuple[dict[int, float] | None, str]:
    """Seconds that each open point takes from start to end, and what they stand on; None: not known."""
    ended = {now.number: float(now.fields["seconds"]) for now in _measured(states)}
    for unit in ("train_s", "row_s"):
        costs = {now.number: _cost(sweep, now, unit) for now in open_points}
        known = {number: _cost(sweep, states[number], unit) for number in ended}
        both = {number: cost for number, cost in known.items() if cost}
        if None in costs.values() or not (both or (unit == "train_s" and not ended)):
            continue
        scale = sum(ended[number] for number in both) / sum(both.values()) if both else 1.0
        return {number: scale * (cost or 0.0) for number, cost in costs.items()}, FORECAST
    if not ended:
        return None, ""
    return {now.number: _mean_s(states) for now in open_points}, PACE


def _measured(states: States) -> list[PointState]:
    """Points whose whole duration is known: those that went through in one attempt."""
    ended = [now for now in states.values() if now.state in (DONE, PRUNED) and "seconds" in now.fields]
    return [now for now in ended if now.attempt == 1] or ended


def _mean_s(states: States) -> float:
    seconds = [float(now.fields["seconds"]) for now in _measured(states)]
    return sum(seconds) / len(seconds) if seconds else 0.0


def _cost(sweep: Sweep, now: PointState, unit: str) -> float | None:
    """What the forecast says; nothing of a point that a retry has given other settings."""
    if now.overrides or len(sweep.forecasts) < now.number:
        return None
    figures: dict[str, Any] = sweep.forecasts[now.number - 1]["figures"]
    return figures.get(unit)


def _elapsed_s(now: PointState) -> float:
    try:
        since = datetime.fromisoformat(str(now.fields["since"]).replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return 0.0
    return max(0.0, (datetime.now(timezone.utc) - since).total_seconds())


def _last_end(busy: Sequence[float], after: Sequence[float], slots: int) -> float:
    """When the last one ends if each begins as soon as there is room.

    >>> _last_end([5.0], [10.0, 10.0, 10.0], 2)
    20.0
    """
    free = [*busy, *[0.0] * (slots - len(busy))]
    heapq.heapify(free)
    last = max(free)
    for seconds in after:
        end = heapq.heappop(free) + seconds
        heapq.heappush(free, end)
        last = max(last, end)
    return last


def _rough(seconds: float) -> str:
    """Write a duration no finer than it is known.

    >>> _rough(14.4), _rough(850), _rough(9000)
    ('14 s', '14 min', '2 h 30 min')
    """
    return duration(seconds) if seconds < 60 or seconds >= 3600 else f"{round(seconds / 60)} min"
