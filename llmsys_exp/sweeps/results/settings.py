"""The settings of the points of a sweep, as values: which of them vary, and how each point has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_QUOTES = "'\""


def setting_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return key -> value of overrides; a later one replaces an earlier one, as in Hydra.

    A deleted key (`~key`) has the value None.

    >>> setting_values(["zero.stage=2", "method=lora", "training.learning_rate=1e-3", "zero.stage=3"])
    {'zero.stage': 3, 'method': 'lora', 'training.learning_rate': 0.001}
    """
    values: dict[str, Any] = {}
    for text in overrides:
        key, equals, written = text.partition("=")
        name = key.lstrip("+~")
        values[name] = _value(written) if equals and not key.startswith("~") else None
    return values


def varied(points: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the settings that differ between points, in order of appearance; not to have one is a value."""
    seen: dict[str, set[str]] = {}
    for values in points.values():
        for key in values:
            seen.setdefault(key, set())
    for key, found in seen.items():
        found.update(repr(values.get(key)) for values in points.values())
    return [key for key, found in seen.items() if len(found) > 1]


def _value(text: str) -> Any:
    """Read a number, true, false or null as such; everything else is text, without the quotes around it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES
    return text[1:-1] if quoted else text
