"""The space of a search: which values each setting may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.config.limits import setting_problem
from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import ConfigError, UserError, unknown_name
from llmsys_exp.sweeps.points.settings import Setting, write

KEYS = ("low", "high", "log", "step")
MOST_VALUES = 10_000
"""A range of more values is not gone through one by one."""
DIGITS, STEP_DIGITS = 6, 15
"""Significant digits of a number between two limits, what a person would copy, and of one at a step."""


@dataclass(frozen=True)
class Dimension:
    """What one setting may be: one of `choices`, or a number from `low` to `high`.

    Attributes:
        key: the setting, or a group.
        choices: None for a range.
        low: smallest value of a range.
        high: largest one.
        log: whether its logarithm is what is spread evenly.
        step: from one value to the next; None: any number, or any whole one.
        whole: whether only whole numbers count.
    """

    key: str
    choices: tuple[Any, ...] | None = None
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    whole: bool = False

    def values(self) -> tuple[Any, ...] | None:
        """Return all its values, in order; None where these are too many to count."""
        if self.choices is not None:
            return self.choices
        step = self.step or (1 if self.whole else 0)
        if not step or (self.high - self.low) / step >= MOST_VALUES:
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return tuple(self.rounded(self.low + place * step) for place in range(count))

    def rounded(self, value: Any) -> Any:
        """Return a suggested value as it is written."""
        if self.choices is not None:
            return value
        if self.whole:
            return int(value)
        digits = STEP_DIGITS if self.step else DIGITS
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    def within(self, values: Sequence[Any]) -> Dimension:
        """Return the smallest dimension of this kind that holds some of its values."""
        if self.choices is not None:
            return Dimension(self.key, tuple(one for one in self.choices if one in values))
        low, high = min(values), max(values)
        return Dimension(self.key, None, low, high, self.log, self.step, self.whole)

    def plain(self) -> Any:
        """Return it as a search file has it."""
        if self.choices is not None:
            return list(self.choices)
        more = {"log": True} if self.log else {}
        return {"low": self.low, "high": self.high, **more, **({"step": self.step} if self.step else {})}

    def ends(self, where: str) -> list[Setting]:
        """Return the overrides that say whether the setting takes such values at all."""
        values = (self.low, self.high) if self.choices is None else self.choices
        return [write(self.key, value, where=where) for value in values]


def read_space(given: Any, where: str) -> tuple[Dimension, ...]:
    """Read the section `search` of a sweep file.

    Raises:
        UserError: when it is none.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"search takes a mapping of settings to values, not {given!r}", where=where)
    if not given:
        raise UserError("The search space is empty", where=where, do="Give a setting values or low and high")
    found = tuple(_dimension(str(key), value, f"{where}: {key}") for key, value in given.items())
    problems = [
        f"{problem}  ({where})"
        for dimension in found
        for one in dimension.ends(where)
        if (problem := setting_problem(one.key, one.value)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return found


def _dimension(key: str, given: Any, where: str) -> Dimension:
    if isinstance(given, Mapping):
        return _range(key, given, where)
    if not isinstance(given, list):
        raise UserError(
            f"{key} is {given!r}",
            where=where,
            do="Write [A, B, C] or {low: A, high: B}; one value goes to base",
        )
    if not given:
        raise UserError(f"{key} has no values", where=where, do="Give it at least one")
    for value in given:
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        if not is_plain or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(
                f"{key} has the value {value!r}", where=where, why="Values of a search are numbers and words"
            )
    if any(given.index(value) < place for place, value in enumerate(given)):
        raise UserError(f"{key} has a value twice", where=where, do="Leave one of them out")
    return Dimension(key, tuple(given))


def _range(key: str, given: Mapping[Any, Any], where: str) -> Dimension:
    for name in given:
        if name not in KEYS:
            raise unknown_name("part of a range", str(name), KEYS, where=where)
    low, high = (_number(given, name, where) for name in ("low", "high"))
    log, step = given.get("log", False), None if given.get("step") is None else _number(given, "step", where)
    if not isinstance(log, bool):
        raise UserError(f"log is {log!r}", where=where, do="Write log: true or log: false")
    if low > high:
        raise UserError(f"low is {low} and high is {high}", where=where, do="Exchange them")
    if log and low <= 0:
        raise UserError(f"low is {low}", where=where, why="A logarithm is of numbers above 0 alone")
    if log and step is not None:
        raise UserError("log and step do not go together", where=where, do="Leave one of them out")
    if step is not None and step <= 0:
        raise UserError(f"step is {step}", where=where, do="Give a number above 0")
    whole = isinstance(low, int) and isinstance(high, int) and settings_tree().leaves.get(key) is not float
    if whole and step is not None and not isinstance(step, int):
        raise UserError(f"step is {step}, and {key} takes whole numbers", where=where)
    if not whole:
        low, high, step = float(low), float(high), None if step is None else float(step)
    return Dimension(key, None, low, high, log, step, whole)


def _number(given: Mapping[Any, Any], name: str, where: str) -> float:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        said = f"{name} is missing" if name not in given else f"{name} is {value!r}, which is no number"
        raise UserError(said, where=where, do="Write {low: A, high: B}, and log: true where powers matter")
    return value
