"""Which runs are meant: by name, state, age, and by conditions on their settings and figures."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from llmsys_exp.errors import UserError, closest, unknown_name
from llmsys_exp.runs.listing import FoundRun
from llmsys_exp.runs.status import COMPLETE, FAILED, RUNNING, STOPPED

STATES = (COMPLETE, RUNNING, STOPPED, FAILED)
OWN = ("loss", "score", "peak_gib", "seconds", "energy_wh")
"""Figures that the list shows, by the names of its columns, and the energy."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_CONDITION = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """`KEY=VALUE`, `KEY!=VALUE`, or KEY beside a number with <, <=, > or >=."""

    key: str
    sign: str
    value: str

    def holds(self, value: Any) -> bool:
        """Whether it holds for a value; none does for what a run does not tell."""
        if value is None and self.sign in _ORDERS:
            return False
        number, asked = _number(value), _number(self.value)
        if self.sign in _ORDERS:
            return number is not None and asked is not None and _ORDERS[self.sign](number, asked)
        same = number == asked if None not in (number, asked) else fnmatchcase(_text(value), self.value)
        return same is (self.sign != "!=")


@dataclass(frozen=True)
class Filters:
    """All that has to hold for a run."""

    name: str | None = None
    """Pattern with * and ? for the experiment's name or the id."""
    states: tuple[str, ...] = ()
    since: datetime | None = None
    before: datetime | None = None
    where: tuple[Condition, ...] = ()

    def choose(self, runs: Sequence[FoundRun]) -> list[FoundRun]:
        """Return the runs for which all holds, in their order.

        Raises:
            UserError: for a condition on something that is neither a setting nor a figure.
        """
        found = [run for run in runs if self._by_name(run)]
        found = [run for run in found if not self.states or _in_states(run.state, self.states)]
        if self.where:
            check_keys([one.key for one in self.where], found)
            found = [run for run in found if self._holds(run)]
        return found

    def _by_name(self, run: FoundRun) -> bool:
        if self.name is not None and not (fnmatchcase(run.name, self.name) or fnmatchcase(run.id, self.name)):
            return False
        if self.since is not None and run.time < self.since:
            return False
        return self.before is None or run.time < self.before

    def _holds(self, run: FoundRun) -> bool:
        values = values_of(run)
        return all(one.holds(values.get(one.key)) for one in self.where)


def read_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        UserError: when it is none.

    >>> read_condition("loss<2.0")
    Condition(key='loss', sign='<', value='2.0')
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise UserError(
            f"{text} is no condition", where="--where", do="Write KEY=VALUE or, in quotes, 'loss<2.0'"
        )
    key, sign, value = match.groups()
    if sign in _ORDERS and _number(value) is None:
        raise UserError(
            f"{value or 'nothing'} is no number", where=f"--where {text}", do=f"{sign} takes a number"
        )
    return Condition(key, "=" if sign == "==" else sign, value)


def read_states(text: str) -> tuple[str, ...]:
    """Read states, several with commas between; a kind of failure alone will do: `oom_gpu`.

    Raises:
        UserError: for one that looks like a state and is none.
    """
    states = tuple(one.strip() for one in text.split(",") if one.strip())
    for one in states:
        near = closest(one, STATES)
        if one not in STATES and (near or not re.fullmatch(r"[a-z_]+", one)):
            raise unknown_name("state", one, STATES, where="--state")
    return states


def read_time(text: str, flag: str, now: datetime) -> datetime:
    """Read an age (30m, 12h, 2d, 3w) or a date (2026-11-30, 2026-11-30T08:00) as local time.

    Raises:
        UserError: when it is neither.
    """
    match = _AGE.fullmatch(text)
    try:
        if match:
            return now - timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UserError(
            f"{text} is no age and no date", where=flag, do="Write 30m, 12h, 2d, 3w, or 2026-11-30"
        ) from None
    return moment.astimezone().replace(tzinfo=None) if moment.tzinfo else moment


def values_of(run: FoundRun) -> dict[str, Any]:
    """Return all that a condition may name: the options of groups, settings, figures."""
    from llmsys_exp.runs.resume_rules import flat
    from llmsys_exp.sweeps.results.figures import run_figures

    told = run.read()
    row = run.row
    own = {
        "loss": row.loss,
        "score": row.score,
        "peak_gib": None if row.peak_bytes is None else row.peak_bytes / 2**30,
        "seconds": row.seconds,
        "energy_wh": told.record["energy_wh"],
    }
    return {**told.group("groups"), **flat(told.group("config")), **run_figures(told), **own}


def check_keys(keys: Sequence[str], runs: Sequence[FoundRun]) -> None:
    """Refuse names that are neither a figure nor a setting, of today or of one of these runs.

    Raises:
        UserError: naming the closest one.
    """
    known = known_keys()
    for key in keys:
        if key not in known and not any(key in values_of(run) for run in runs):
            raise unknown_name("setting or figure of a run", key, known, where="--where")


@lru_cache(maxsize=1)
def known_keys() -> tuple[str, ...]:
    """Return figures, groups and settings of today."""
    from llmsys_exp.config.groups import Groups
    from llmsys_exp.config.plain import to_plain
    from llmsys_exp.config.schema import Config
    from llmsys_exp.runs.resume_rules import flat
    from llmsys_exp.sweeps.results.figures import FIGURES

    return (*OWN, *FIGURES, *Groups.shipped().names(), *flat(to_plain(Config())))


def _in_states(state: str, wanted: Sequence[str]) -> bool:
    kind = state.removeprefix(f"{FAILED} (").rstrip(")")
    return any(one in (state, state.partition(" ")[0], kind) for one in wanted)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    from llmsys_exp.report.pages.run_settings import plain_text

    return plain_text(value)
