"""The settings of a run as a table: each with where it comes from and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.report.plan_rows import override_values
from llmsys_exp.runs.resume_rules import flat
from llmsys_exp.runs.told import group

CHOSEN, ASKED, SET, DEFAULT = "chosen", "asked", "set", "default"
_ORDER = (CHOSEN, ASKED, SET, DEFAULT)


def settings_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return every setting with `key`, `value`, `from` and `why`: first those that were chosen or asked for.

    `chosen`: by the planner; `asked`: on the command line; `set`: by the experiment, a group or an earlier
    run; `default`: by nobody.
    """
    serving = group(record, "serving").get("choices")
    listed = [*record["choices"], *(serving if isinstance(serving, list) else ())]
    choices = {str(one.get("key")): one for one in listed if isinstance(one, dict)}
    asked = override_values(record["overrides"])
    defaults = flat(to_plain(Config()))
    values = {**{key: one.get("value") for key, one in choices.items()}, **flat(record["config"])}
    rows = [_row(key, value, choices.get(key), asked, defaults) for key, value in values.items()]
    return sorted(rows, key=lambda row: (_ORDER.index(row["from"]), row["key"]))


def _row(
    key: str,
    value: Any,
    choice: Mapping[str, Any] | None,
    asked: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> dict[str, str]:
    reason = "" if choice is None else str(choice.get("reason") or "")
    if choice is not None and not choice.get("given"):
        origin = CHOSEN
    elif key in asked:
        origin = ASKED
    else:
        origin = DEFAULT if key in defaults and defaults[key] == value else SET
    return {"key": key, "value": plain_text(value), "from": origin, "why": reason or _why(key, origin, asked)}


def _why(key: str, origin: str, asked: Mapping[str, str]) -> str:
    if origin == ASKED:
        return "given on the command line"
    group = next((name for name in _above(key) if name in asked), None)
    if origin != SET:
        return ""
    return f"from {group}={asked[group]}" if group else "by the experiment, a group or another setting"


def _above(key: str) -> Sequence[str]:
    """Return the groups that a setting may come from, the nearest first.

    >>> _above("method.lora.r")
    ['method.lora', 'method']
    """
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def plain_text(value: Any) -> str:
    """Write a value of a configuration or a record."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain_text(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain_text, value))
    return str(value)
