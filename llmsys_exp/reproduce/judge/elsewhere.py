"""A run of another tool against ours: another order of rows, so curves are compared and not single steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmsys_exp.importers import LoggedRun
from llmsys_exp.reproduce.drift import EVALUATION, FIRST, LATER, LENGTH, RATE
from llmsys_exp.reproduce.judge.row import Row, number_row, shown
from llmsys_exp.reproduce.series import Log
from llmsys_exp.reproduce.tolerances import ELSEWHERE, Tolerance

SHIFTS = (0, -1, 1)
"""Steps by which ours may be ahead: some versions of the Trainer log the rate of the step that follows."""
PARTS = 5
"""Stretches of the run whose mean losses are compared."""


def rows_of(theirs: LoggedRun, ours: Log, evaluation: Mapping[str, Any]) -> Iterator[Row | None]:
    """Yield a row for each figure that the other tool has logged.

    Args:
        theirs: what it has logged.
        ours: every step of the new run.
        evaluation: `evaluation` of our results.
    """
    mine = ours.losses.by_step()
    steps = [one for one in theirs.steps if one["step"] in mine]
    yield _length(theirs, mine)
    pairs = [(float(one["loss"]), _mean(mine, one["step"], theirs.mean_of_steps)) for one in steps]
    yield from _curve(steps, pairs)
    yield from _rates(theirs.steps, ours.rates.by_step())
    for when, told in (("before", _at_start(theirs)), ("after", _last(theirs))):
        logged, found = told.get("loss"), (evaluation.get(when) or {}).get("loss")
        if found is not None:
            name = f"held-out loss {when}"
            yield number_row(name, EVALUATION, logged, found, Tolerance(*ELSEWHERE["evaluation"]))


def _length(theirs: LoggedRun, mine: Mapping[int, float]) -> Row | None:
    total = theirs.total_steps or (theirs.steps[-1]["step"] if theirs.steps else None)
    tolerance = Tolerance(*ELSEWHERE["steps"])
    return number_row("optimizer steps", LENGTH, total, max(mine, default=0), tolerance)


def _curve(steps: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[float, float]]) -> Iterator[Row | None]:
    """Compare means over stretches of the run, and show the worst single step."""
    if not pairs:
        return
    size = max(2, len(pairs) // PARTS)
    starts = range(0, max(1, len(pairs) - size + 1), size)
    for at in starts:
        part = pairs[at:] if at == starts[-1] else pairs[at : at + size]  # the last one takes what is left
        name = f"mean loss, steps {steps[at]['step']} to {steps[at + len(part) - 1]['step']}"
        logged, found = (sum(one[side] for one in part) / len(part) for side in (0, 1))
        tolerance = Tolerance(*ELSEWHERE["curve"])
        yield number_row(name, FIRST if at == 0 else LATER, logged, found, tolerance)
    free = Tolerance(*ELSEWHERE["step"])
    worst = max(range(len(pairs)), key=lambda at: free.distance(*pairs[at]))
    name = f"loss, worst of {len(pairs)} logged steps (step {steps[worst]['step']})"
    yield number_row(name, LATER, *pairs[worst], free)


def _rates(steps: Sequence[Mapping[str, Any]], mine: Mapping[int, float]) -> Iterator[Row]:
    """Compare learning rates after warm-up, at the shift at which the two programs agree best."""
    told = {one["step"]: one["learning_rate"] for one in steps if one.get("learning_rate") is not None}
    if not told or not mine:
        return
    tolerance, best = Tolerance(*ELSEWHERE["rate"]), max(told.values())
    # on the way up the Trainer is a step behind, for its first step has a rate of 0
    top = next(step for step, rate in told.items() if rate == best)
    told = {step: rate for step, rate in told.items() if step >= top}
    shifts = {shift: [step for step in told if step + shift in mine] for shift in SHIFTS}

    def gap(step: int, shift: int) -> float:
        # relative to the highest: at the end of a schedule both go to nothing
        return abs(mine[step + shift] - told[step]) / best if best else 0.0

    worst = {
        shift: max(common, key=lambda step, shift=shift: gap(step, shift))
        for shift, common in shifts.items()
        if common
    }
    if not worst:
        return
    shift = min(worst, key=lambda one: gap(worst[one], one))
    step = worst[shift]
    off = gap(step, shift)
    name = f"learning rate, worst of {len(told)} logged steps (step {step}{_ahead(shift)})"
    passed = off <= (tolerance.bound or 0.0)
    logged, found = told[step], mine[step + shift]
    yield Row(name, RATE, logged, found, shown(off, tolerance), tolerance.words, passed, tolerance.reason)


def _ahead(shift: int) -> str:
    return f", ours of step {shift:+d}" if shift else ""


def _mean(mine: Mapping[int, float], step: int, over: int) -> float:
    """Return the mean of our losses over the steps that one of theirs is the mean of."""
    values = [mine[one] for one in range(step - over + 1, step + 1) if one in mine]
    return sum(values) / len(values)


def _at_start(theirs: LoggedRun) -> Mapping[str, Any]:
    return next((one for one in theirs.evaluation if one.get("step") == 0), {})


def _last(theirs: LoggedRun) -> Mapping[str, Any]:
    later = [one for one in theirs.evaluation if one.get("step")]
    return later[-1] if later else {}
