"""Which suggestions of a search may become points: judged by the gate of every sweep, each plan once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from llmsys_exp.config.schema import GatePolicy
from llmsys_exp.errors import DoesNotFit
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.sweeps.gate.gate import RUNS, SKIPPED, TIGHT, place_of, reason
from llmsys_exp.sweeps.gate.outcomes import UNPLANNED, Outcome, Outcomes
from llmsys_exp.sweeps.points.composing import Composer, Resolved
from llmsys_exp.sweeps.points.find import expand_search, is_excluded
from llmsys_exp.sweeps.points.point import Gated, Point
from llmsys_exp.sweeps.points.settings import Setting, write
from llmsys_exp.sweeps.points.sweep_file import Condition, SweepFile
from llmsys_exp.sweeps.search.space import Dimension

MOST_LISTED = 10_000
"""More combinations than this are not judged before the search begins."""
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What is said of one suggestion.

    Attributes:
        key: hash of its configuration.
        overrides: of the point that it would be.
        forecast: as `folder.Sweep.forecasts` has them.
        excess: the share by which it needs more than there is; 0 where it may run.
        excluded: whether the file itself leaves it out.
        kind: what speaks against it, without figures.
    """

    key: str
    overrides: tuple[str, ...] = ()
    forecast: dict[str, Any] = field(default_factory=dict)
    excess: float = 0.0
    excluded: bool = False
    kind: str = ""

    @property
    def what(self) -> str:
        """What speaks against it; empty where nothing does."""
        return "excluded" if self.excluded else str(self.forecast["reason"] or "")


class Feasible:
    """The gate of one search."""

    def __init__(self, read: SweepFile, base: Sequence[str], verb: str) -> None:
        """Prepare to judge.

        Args:
            read: the file of the search.
            base: overrides that its points share.
            verb: what runs a point.
        """
        assert read.search is not None
        self._read, self._verb, self._composer = read, verb, Composer(base)
        self._space = read.search.space
        self._known: dict[tuple[str, ...], Outcome] = {}
        self._simulations = Simulations(keep=True)

    def judge(self, params: Params) -> Judgement:
        """Judge a suggestion by the forecast of `llmsys plan`."""
        settings, resolved = self._resolve(params)
        key = self._composer.key(resolved)
        texts = tuple(one.text for one in settings)
        if is_excluded(resolved, self._read.exclude):
            return Judgement(key, texts, excluded=True, excess=1.0)
        policy = str(resolved.value("gate.policy"))
        if policy == GatePolicy.off.value:
            return Judgement(key, texts, _forecast(Gated(Point(0, key, texts), RUNS, {})))
        outcome = self._outcome(settings, resolved)
        runs = outcome.fits or (policy == GatePolicy.warn.value and not outcome.refused)
        verdict = SKIPPED if not runs else RUNS if outcome.fits and outcome.sure else TIGHT
        fix = None if outcome.fix is None else outcome.fix_text
        told = _forecast(Gated(Point(0, key, texts), verdict, outcome.figures, fix))
        if runs:
            return Judgement(key, texts, told)
        return Judgement(key, texts, told, _excess(outcome.figures), kind=_against(policy, outcome))

    def planned(self) -> tuple[Dimension, ...]:
        """Return the dimensions that a forecast depends on."""
        asked = {one.key for entry in self._read.when for values in entry.condition.wanted for one in values}
        return tuple(one for one in self._space if one.key not in UNPLANNED or one.key in asked)

    def listed(self) -> tuple[list[Params], dict[str, int]] | None:
        """Judge every combination of `planned` by estimates; None where they are too many.

        Returns:
            Those that may fit, and how many do not by what speaks against them.
        """
        dimensions = self.planned()
        values = [one.values() for one in dimensions]
        if None in values or prod(len(one or ()) for one in values) > MOST_LISTED:
            return None
        keys = [one.key for one in dimensions]
        found = [dict(zip(keys, one, strict=True)) for one in product(*(one or () for one in values))]
        resolved = [self._resolve(params)[1] for params in found]
        against = Counter(said := self._against_each(resolved))
        del against[""]
        return [params for params, what in zip(found, said, strict=True) if not what], dict(against)

    def _against_each(self, points: Sequence[Resolved]) -> list[str]:
        """Say of each point what speaks against it, by estimates; nothing of those near the limit."""
        policies = [str(one.value("gate.policy")) for one in points]
        said = ["excluded" if is_excluded(one, self._decided()) else "" for one in points]
        asked = [
            place for place, one in enumerate(policies) if one != GatePolicy.off.value and not said[place]
        ]
        outcomes = Outcomes(self._verb, most_plays=0).of([points[place] for place in asked])
        for place, outcome in zip(asked, outcomes, strict=True):
            said[place] = _against(policies[place], outcome)
        return said

    def narrowed(self) -> tuple[tuple[Dimension, ...], dict[str, int]]:
        """Return the space without values that fit in no combination, and how many combinations do not fit.

        Raises:
            DoesNotFit: when none fits.
        """
        found = self.listed()
        if found is None:
            return self._space, {}
        may, against = found
        if not may:
            most = max(against, key=lambda what: against[what])
            raise DoesNotFit(
                f"None of the {sum(against.values()):,} combinations of the search space fits",
                where=self._read.name,
                why=f"{against[most]:,} of them: {most}",
                do="Search smaller settings, or run them anyway with gate=warn",
            )
        planned = self.planned()
        return tuple(
            one.within([params[one.key] for params in may]) if one in planned else one for one in self._space
        ), against

    def _decided(self) -> tuple[Condition, ...]:
        """Exclusions that say nothing of dimensions without a forecast."""
        free = {one.key for one in self._space} - {one.key for one in self.planned()}
        return tuple(
            condition
            for condition in self._read.exclude
            if not free & {setting.key for values in condition.wanted for setting in values}
        )

    def _resolve(self, params: Params) -> tuple[tuple[Setting, ...], Resolved]:
        where = f"{self._read.name}, search"
        chosen = tuple(write(key, value, where=where) for key, value in params.items())
        settings = expand_search(self._composer, chosen, self._read)
        return settings, self._composer.resolve(settings)

    def _outcome(self, settings: Sequence[Setting], resolved: Resolved) -> Outcome:
        """Play what is near the limit in full: a search starts few points, one after the other."""
        known = tuple(one.text for one in settings if one.key not in UNPLANNED)
        if known not in self._known:
            (self._known[known],) = Outcomes(self._verb, simulations=self._simulations).of([resolved])
        return self._known[known]


def composed(read: SweepFile, base: Sequence[str]) -> Any:
    """Compose one point of a search, for its name and where its folder goes.

    Raises:
        UserError: when its settings cannot be composed.
    """
    assert read.search is not None
    composer = Composer(base)
    chosen = tuple(one.ends(read.name)[0] for one in read.search.space)
    return composer.resolve(chosen).config()


def _against(policy: str, outcome: Outcome) -> str:
    if outcome.fits:
        return ""
    if outcome.refused:
        return str(outcome.figures["refused"])
    if outcome.not_forecast:
        return "" if policy == GatePolicy.warn.value else outcome.not_forecast
    return "" if policy == GatePolicy.warn.value else f"too large for {place_of(outcome.figures)}"


def _forecast(gated: Gated) -> dict[str, Any]:
    return {
        "verdict": gated.verdict,
        "reason": reason(gated) if gated.verdict == SKIPPED else None,
        "figures": gated.figures,
        "fix": gated.fix,
        "filled_from": None,
    }


def _excess(figures: Mapping[str, Any]) -> float:
    needed, limit = figures.get("needed_gib"), figures.get("limit_gib")
    return max(needed / limit - 1, 1e-6) if needed and limit else 1.0
