"""Optuna, asked anew each time: what it suggests and prunes follows from the ledger alone.

So a search that was killed goes on as if it had not been. No database and no pickle holds anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from llmsys_exp.errors import UserError
from llmsys_exp.launch.failure import OOM_GPU, OOM_HOST
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, PRUNED, RUNNING, PointState
from llmsys_exp.sweeps.ledger.searching import Suggestion
from llmsys_exp.sweeps.ledger.settle import AGAIN
from llmsys_exp.sweeps.search.asked import Search
from llmsys_exp.sweeps.search.metrics import NO_NUMBER
from llmsys_exp.sweeps.search.space import Dimension

if TYPE_CHECKING:
    import optuna

TOO_LARGE = frozenset({OOM_GPU, OOM_HOST, "does_not_fit"})
DIVERGED = frozenset({"diverged", "fp16_overflow"})
MEMORY = "memory"
LEAST_FOR_IMPORTANCE = 4


@dataclass(frozen=True)
class Trial:
    """What Optuna is told of one suggestion.

    Attributes:
        params: the searched settings.
        state: `COMPLETE`, `PRUNED`, `RUNNING` or `FAIL`, as Optuna calls it.
        values: one for each objective.
        curve: what was told on the way, by step.
        excess: the share by which it needed more memory than there is.
    """

    params: Mapping[str, Any]
    state: str
    values: Sequence[float] | None = None
    curve: Mapping[int, float] = field(default_factory=dict)
    excess: float = 0.0


def require_optuna() -> None:
    """Refuse a search where Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UserError(
            "A search needs the package optuna", do="Run: pip install 'llmsys-exp[search]'", where="search"
        )


def trials_of(suggestions: Sequence[Suggestion], states: Mapping[int, PointState]) -> list[Trial]:
    """Return what the ledger says of each suggestion, as Optuna puts it."""
    return [
        Trial(one.params, "PRUNED", excess=one.excess)
        if one.number is None
        else trial_of(one.params, states[one.number])
        for one in suggestions
    ]


def trial_of(params: Mapping[str, Any], now: PointState) -> Trial:
    """Return what Optuna is told of a point.

    A loss that is no number and a run that diverged are worse than all others; what ran out of memory is a
    place to keep away from.
    """
    if now.overrides:  # a retry's settings are not those that were suggested
        return Trial(params, "FAIL")
    kind = now.fields.get("kind")
    if now.state in (PLANNED, RUNNING, LOST) or (now.state == FAILED and kind in AGAIN):
        return Trial(params, "RUNNING")
    if now.state == PRUNED:
        step, value = now.fields.get("step"), now.fields.get("value")
        return Trial(params, "PRUNED", curve={} if value is None else {int(step): float(value)})
    if now.state == FAILED and kind in TOO_LARGE:
        return Trial(params, "PRUNED", excess=1.0)
    values = now.fields.get("values") or [None]
    if (now.state == FAILED and kind in DIVERGED) or NO_NUMBER in values:
        return Trial(params, "PRUNED")
    if now.state == DONE and None not in values:
        return Trial(params, "COMPLETE", values)
    return Trial(params, "FAIL")


class Asking:
    """Suggestions for one place in the history of a search; the same history gives the same suggestions."""

    def __init__(self, search: Search, history: Sequence[Trial]) -> None:
        self._search, self._history = search, len(history)
        self._in_vain = len(list(takewhile(lambda one: one.excess > 0, reversed(history))))
        with _quiet():
            self._study = study_of(search, history)
            self._distributions = distributions(search.space)

    def suggestions(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield suggestions; one that is not taken is told to Optuna before the next is asked for.

        Where half of them, or as many before, came to nothing, the others are random.
        """
        for attempt in range(most):
            is_random = self._search.sampler == "random" or attempt + self._in_vain >= most // 2
            with _quiet():
                self._study.sampler = _sampler(self._search.seed, self._history, attempt, is_random=is_random)
                trial = self._study.ask(self._distributions)
            yield {one.key: one.rounded(trial.params[one.key]) for one in self._search.space}
            self._drop(trial)

    def _drop(self, trial: optuna.Trial) -> None:
        import optuna

        trial.set_constraint(MEMORY, 1.0)
        self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def should_stop(search: Search, done: Sequence[Trial], running: Trial) -> bool:
    """Ask the pruner whether a run is not worth going on with, at the last step of its curve."""
    import optuna

    assert search.pruner is not None
    with _quiet():
        study = study_of(search, done)
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=search.pruner.startup_trials, n_warmup_steps=search.pruner.warmup_steps
        )
        return pruner.prune(study, _frozen(running, distributions(search.space)))


def importances(search: Search, history: Sequence[Trial]) -> dict[str, float]:
    """Return the weight of each setting for the first objective, from 0 to 1; empty where that is unknown."""
    done = [one for one in history if one.state == "COMPLETE"]
    if len(done) < LEAST_FOR_IMPORTANCE:
        return {}
    import optuna

    with _quiet():
        study = study_of(search, done)
        several = len(search.objectives) > 1
        target = (lambda trial: trial.values[0]) if several else None
        try:
            return dict(optuna.importance.get_param_importances(study, target=target))
        except (ValueError, RuntimeError):  # all runs came to the same
            return {}


def study_of(search: Search, history: Sequence[Trial]) -> optuna.Study:
    """Put what is known into a study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=[one.direction for one in search.objectives])
    known = distributions(search.space)
    study.add_trials([_frozen(one, known) for one in history])
    return study


def distributions(space: Sequence[Dimension]) -> dict[str, Any]:
    """Return the space as Optuna has it."""
    return {one.key: _distribution(one) for one in space}


def _distribution(one: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
    return FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def _frozen(trial: Trial, known: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
    import optuna

    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[trial.state],
        values=trial.values,
        params=dict(trial.params),
        distributions=dict(known),
        intermediate_values=dict(trial.curve),
        constraints={MEMORY: trial.excess} if trial.excess else None,
    )


def _sampler(seed: int, history: int, attempt: int, *, is_random: bool) -> optuna.samplers.BaseSampler:
    """Make one for this place alone: nothing has to be remembered between two suggestions."""
    import numpy as np
    import optuna

    mixed = int(np.random.SeedSequence((seed, history, attempt)).generate_state(1)[0])
    if is_random:
        return optuna.samplers.RandomSampler(seed=mixed)
    return optuna.samplers.TPESampler(seed=mixed, multivariate=True, constant_liar=True)


class _quiet(warnings.catch_warnings):
    """Optuna's words on experimental options and steps that do not divide a range are not for the user."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
