"""Seconds that points take by the speed forecast, from which a sweep tells how long is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsys_exp.config.schema import Config
from llmsys_exp.plan.settling import speed_is_forecast
from llmsys_exp.sweeps.gate.playing import Judged
from llmsys_exp.sweeps.points.composing import Resolved
from planner.speed import step_time

if TYPE_CHECKING:
    from llmsys_exp.sweeps.gate.outcomes import Outcome

LENGTHS = ("training.max_steps", "training.epochs", "data.limit")
"""What says how many steps a run has; no other forecast depends on them."""


def step_figures(config: Config, judged: Sequence[Judged]) -> list[dict[str, float]]:
    """Return `step_s` and `rows_a_step` of each setting; nothing where there is no forecast of speed."""
    figures: list[dict[str, float]] = [{} for _ in judged]
    if not speed_is_forecast(config):
        return figures
    cases = {id(one.case): one.case for one in judged if one.case is not None}
    for name, case in cases.items():
        places = [place for place, one in enumerate(judged) if id(one.case) == name]
        pairs = [judged[place].pair for place in places]
        micro, accum = (np.array([pair[at] for pair in pairs], dtype=np.float64) for at in (0, 1))
        ranks = case.world_size // case.sequence_parallel
        seconds = step_time(case, micro, case.seq_len, accum).seconds.tolist()
        for place, pair, step_s in zip(places, pairs, seconds, strict=True):
            figures[place] = {"step_s": round(step_s, 4), "rows_a_step": pair[0] * pair[1] * ranks}
    return figures


class Lengths:
    """Says how long runs take whose steps are forecast."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._told: dict[tuple[Any, ...], Outcome] = {}

    def told(self, point: Resolved, outcome: Outcome) -> Outcome:
        """Return an outcome whose figures say `train_s`, or `row_s` where nobody has counted the data.

        `train_s`: seconds of all steps. `row_s`: those of all epochs together, for each row of the data.
        """
        if "step_s" not in outcome.figures:
            return outcome
        lengths = self._of(point)
        alike = (id(outcome), *lengths)  # points that differ in a seed share an outcome
        if alike not in self._told:
            self._told[alike] = replace(
                outcome, figures={**outcome.figures, **_whole(outcome.figures, *lengths)}
            )
        return self._told[alike]

    def _of(self, point: Resolved) -> tuple[Any, ...]:
        alike = (id(point.tree), *[one.text for one in point.settings if one.key in LENGTHS])
        if alike not in self._known:
            self._known[alike] = tuple(point.value(key) for key in LENGTHS)
        return self._known[alike]


def _whole(figures: dict[str, Any], steps: int | None, epochs: float, limit: int | None) -> dict[str, float]:
    step_s, rows = figures["step_s"], figures["rows_a_step"]
    if steps is None and limit is not None:
        steps = ceil(limit * epochs / rows)
    if steps is not None:
        return {"train_s": round(step_s * steps, 3)}
    return {"row_s": step_s / rows * epochs}
