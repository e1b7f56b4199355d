"""What a search looks for: the sections of a sweep file that make one of it.

    search:                            # a list, or a range
      method.lora.r: [8, 16, 32]
      training.learning_rate: {low: 1e-5, high: 1e-3, log: true}
      training.micro_batch: {low: 1, high: 8}
    objective: {metric: evaluation.loss, direction: minimize}     # or several in a list
    trials: 40                         # points, not counting suggestions that do not fit
    sampler: tpe                       # or random
    seed: 0
    pruner: median                     # none by default; {median: {startup_trials: 5, warmup_steps: 0}}

`base`, `when` (with one value for each setting) and `exclude` mean what they mean in every sweep file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.sweeps.points.settings import Setting
from llmsys_exp.sweeps.search.metrics import DIRECTIONS, METRICS
from llmsys_exp.sweeps.search.space import Dimension, read_space

SECTIONS = ("search", "objective", "trials", "sampler", "seed", "pruner")
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "none")
TRIALS = 20
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Objective:
    """What is to become small or large."""

    metric: str
    direction: str

    @property
    def sign(self) -> float:
        """What a value is multiplied with so that smaller ones are better."""
        return 1.0 if self.direction == "minimize" else -1.0


@dataclass(frozen=True)
class Median:
    """Stop a run that is worse than the median of the others at the same step.

    Attributes:
        startup_trials: how many have to be done before any is stopped.
        warmup_steps: steps of a run in which it is left alone.
    """

    startup_trials: int = 5
    warmup_steps: int = 0


@dataclass(frozen=True)
class Search:
    """A search as it was asked for; `content` are the sections that say it, for `sweep.json`."""

    space: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    trials: int
    sampler: str
    seed: int
    pruner: Median | None
    content: dict[str, Any] = field(default_factory=dict)

    def settings(self, where: str) -> list[Setting]:
        """Return overrides that name every searched setting with values it may take."""
        return [
            one for dimension in self.space for one in dimension.ends(f"{where}, search: {dimension.key}")
        ]


def read_search(content: Mapping[str, Any], name: str) -> Search | None:
    """Read the sections of a sweep file that make a search of it; None where there are none.

    Raises:
        UserError: naming what is wrong.
    """
    if "search" not in content:
        others = [key for key in SECTIONS if key in content]
        if others:
            raise UserError(f"{others[0]} belongs to a search", where=name, do="Give search: {...} too")
        return None
    for section in ("grid", "zip", "points"):
        if section in content:
            raise UserError(
                f"search and {section} do not go together",
                where=name,
                do="Search one value of a list, or fix the setting in base",
            )
    objectives = _objectives(content.get("objective"), f"{name}, objective")
    found = Search(
        space=read_space(content["search"], f"{name}, search"),
        objectives=objectives,
        trials=_whole(content.get("trials", TRIALS), "trials", name, least=1, most=MOST_TRIALS),
        sampler=_word(content.get("sampler", "tpe"), "sampler", SAMPLERS, name),
        seed=_whole(content.get("seed", 0), "seed", name, least=0, most=2**32 - 1),
        pruner=_pruner(content.get("pruner"), objectives, f"{name}, pruner"),
    )
    kept = {key: value for key, value in content.items() if key != "base"}
    filled = {"trials": found.trials, "sampler": found.sampler, "seed": found.seed}
    # as it will be read again
    found.content.update(json.loads(json.dumps({**kept, **filled}, default=str)))
    return found


def _objectives(given: Any, where: str) -> tuple[Objective, ...]:
    listed = given if isinstance(given, list) else [given]
    found = tuple(_objective(one, where) for one in listed)
    if not found:
        raise UserError("There is no objective", where=where, do="Write objective: evaluation.loss")
    metrics = [one.metric for one in found]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise UserError(f"{metric} is an objective twice", where=where, do="Leave one of them out")
    return found


def _objective(given: Any, where: str) -> Objective:
    given = {"metric": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or "metric" not in given:
        known = ", ".join(METRICS)
        raise UserError(
            "A search needs an objective" if given is None else f"The objective is {given!r}",
            where=where,
            do=f"Write objective: {{metric: evaluation.loss, direction: minimize}}.  Metrics: {known}",
        )
    for key in given:
        if key not in ("metric", "direction"):
            raise unknown_name("part of an objective", str(key), ("metric", "direction"), where=where)
    metric = str(given["metric"])
    if metric not in METRICS:
        raise unknown_name("metric", metric, tuple(METRICS), where=where)
    direction = given.get("direction", METRICS[metric].direction)
    return Objective(metric, _word(direction, "direction", DIRECTIONS, where))


def _pruner(given: Any, objectives: tuple[Objective, ...], where: str) -> Median | None:
    options: Any = {}
    if isinstance(given, Mapping) and len(given) == 1:
        ((given, options),) = given.items()
    if given is None or _word(given, "pruner", PRUNERS, where) == "none":
        return None
    if not isinstance(options, Mapping):
        raise UserError(f"The options of the pruner are {options!r}", where=where, do="Write {NAME: NUMBER}")
    fields = ("startup_trials", "warmup_steps")
    for key in options:
        if key not in fields:
            raise unknown_name("option of the median pruner", str(key), fields, where=where)
    if len(objectives) > 1:
        raise UserError("Runs are pruned by one objective alone", where=where, do="Write pruner: none")
    metric = objectives[0].metric
    if METRICS[metric].curve is None:
        able = ", ".join(name for name, one in METRICS.items() if one.curve is not None)
        raise UserError(
            f"{metric} is not known before a run has ended",
            where=where,
            do=f"Write pruner: none, or search by one of {able}",
        )
    return Median(**{key: _whole(value, key, where, least=0) for key, value in options.items()})


def _whole(given: Any, name: str, where: str, *, least: int, most: int | None = None) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least or (most and given > most):
        span = f"from {least} to {most:,}" if most else f"of {least} or more"
        raise UserError(f"{name} is {given!r}", where=where, do=f"Give a whole number {span}")
    return given


def _word(given: Any, kind: str, valid: tuple[str, ...], where: str) -> str:
    if given not in valid:
        raise unknown_name(kind, str(given), valid, where=where)
    return str(given)
