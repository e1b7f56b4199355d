"""Overrides of a sweep, one value each: read from Hydra's grammar, or written in it.

A sweep of 10,000 points names few values that Hydra's parser has to look at; plain numbers and words, which
need none, are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmsys_exp.config.tree import settings_tree
from llmsys_exp.errors import ConfigError, UserError

MOST_POINTS = 200_000
"""What one sweep is planned for; a setting has no more values either."""
COMMAND_LINE = "from the command line"
_SIMPLE = re.compile(r"([a-z_][a-z_0-9]*(?:\.[a-z_0-9]+)+|seed|name)=([A-Za-z0-9_.+-]+)")
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_TEXT = re.compile(r"[A-Za-z_/][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_/-]+)*")
_CONSTANTS = {"true": True, "false": False}
_NOT_WORDS = re.compile(r"null|nan|inf|true|false|yes|no|on|off", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    """One override with one value.

    Attributes:
        key: what stands before `=`, with Hydra's `+` or `~`.
        text: the whole override as Hydra reads it.
        value: plain Python value.
        where: where it was written, for messages.
    """

    key: str
    text: str
    value: Any
    where: str = ""

    @cached_property
    def is_leaf(self) -> bool:
        """Whether it gives one setting of the schema a value of its own, which needs no composing."""
        known = self.key in settings_tree().leaves
        return known and not isinstance(self.value, dict) and "${" not in self.text

    @cached_property
    def section(self) -> str:
        """The top-level entry of a configuration that it lies in."""
        return self.key.partition(".")[0]


def expand(text: str, *, where: str = "") -> list[Setting]:
    """Return an override for each value that an override of Hydra's sweep grammar stands for.

    Raises:
        ConfigError: for what Hydra cannot read, a sweep without an end, or one without values.
    """
    where = where or f"{COMMAND_LINE}: {text}"
    simple = _simple(text, where)
    if simple is not None:
        return [simple]
    override = _parse(text, where)
    key = _key(override)
    if not override.is_sweep_override():
        value = None if override.is_delete() else override.value()
        return [Setting(key, text, value, where)]
    if not override.is_discrete_sweep():
        raise _refused(f"{text} has no list of values", where, "Write KEY=A,B,C or KEY=range(1,4)")
    name = override.get_key_element()  # with the sign of an addition
    texts = [f"{name}={value}" for value in _values(override, text, where)]
    if not texts:
        raise _refused(f"{key} has no values", where, "Give it at least one")
    return [one for text in texts for one in _single(text, where)]


def one_setting(text: str, *, where: str = "") -> Setting:
    """Return an override of one value.

    Raises:
        ConfigError: when it stands for several.
    """
    found = expand(text, where=where)
    if len(found) != 1:
        raise _refused(f"{text} stands for several values", where, "Give one value")
    return found[0]


def write(key: str, value: Any, *, where: str = "") -> Setting:
    """Return the override that gives a setting a value of a YAML file.

    >>> write("training.loss", "stock").text, write("data.system", "a, b").text
    ('training.loss=stock', "data.system='a, b'")
    """
    return Setting(key, f"{key}={_quoted(value)}", value, where)


def keys_of(settings: Iterable[Setting]) -> set[str]:
    """The settings and groups that overrides name, without signs."""
    return {setting.key.lstrip("+~") for setting in settings}


def _values(override: Any, text: str, where: str) -> list[str]:
    """Return the values of a sweep as Hydra writes them, counted before any is made."""
    from hydra.core.override_parser.types import Glob, RangeSweep

    from llmsys_exp.config.groups import Groups

    given = override.value()
    if isinstance(given, Glob):
        return given.filter(Groups.shipped().options(override.key_or_group))
    if isinstance(given, RangeSweep):
        if not given.step:
            raise _refused(f"{text} has a step of 0", where, "Leave the step out, or give another")
        count = ((given.stop or 0) - (given.start or 0)) / given.step
        if not count <= MOST_POINTS:
            why = f"{text} has {count:,.0f} values"
            raise _refused(why, where, f"No more than {MOST_POINTS:,} points are planned")
    return list(override.sweep_string_iterator())


def _single(text: str, where: str) -> list[Setting]:
    simple = _simple(text, where)
    if simple is not None:
        return [simple]
    override = _parse(text, where)
    return [Setting(_key(override), text, override.value(), where)]


def _simple(text: str, where: str) -> Setting | None:
    """Read `key=number` and `key=word`, the bulk of a sweep, as Hydra would."""
    match = _SIMPLE.fullmatch(text)
    if match is None:
        return None
    key, written = match.groups()
    value: Any
    if written in _CONSTANTS:
        value = _CONSTANTS[written]
    elif _INT.fullmatch(written):
        value = int(written)
    elif _FLOAT.fullmatch(written):
        value = float(written)
    elif _WORD.fullmatch(written) and not _NOT_WORDS.fullmatch(written):
        value = written
    else:
        return None
    return Setting(key, text, value, where)


def _parse(text: str, where: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        from llmsys_exp.config.groups import Groups
        from llmsys_exp.config.problems import override_problems

        problems = override_problems([text], Groups.shipped()) or [str(error)]
        if not where.startswith(COMMAND_LINE):
            problems = [str(one).replace(COMMAND_LINE, where, 1) for one in problems]
        raise ConfigError(problems) from error


def _key(override: Any) -> str:
    sign = "~" if override.is_delete() else "+" if override.is_add() else ""
    package = f"@{override.package}" if override.package else ""
    return f"{sign}{override.key_or_group}{package}"


def _quoted(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_quoted(one) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_quoted(one)}' for key, one in value.items())}}}"
    text = str(value)
    if _PLAIN_TEXT.fullmatch(text) and not _NOT_WORDS.fullmatch(text):
        return text
    # Before a quote Hydra takes two backslashes for one; elsewhere it leaves them alone.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"


def _refused(what: str, where: str, do: str) -> ConfigError:
    return ConfigError([UserError(what, where=where, do=do)])
