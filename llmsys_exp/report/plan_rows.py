"""A plan as a row: plain values that tables, files and plots are made from.

A row is a dictionary with these keys; sizes are bytes of one GPU, None where they are not known:

- `point`: number, from 1; `overrides`: key -> value as typed
- `verdict`: `fits`, `tight`, `does not fit`, `no limit` or `failed`
- `required_bytes`, `allocated_bytes`, `reserved_bytes`, `budget_bytes`, `headroom_bytes`
- `largest`, `largest_bytes`; `components` and `phases`: name -> bytes
- `settings`: key -> value after planning; `chosen`: keys of those the planner chose
- `fix`: the change that would make it fit; `error`: why there is no plan
- `extra` (optional): title of a further column -> value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmsys_exp.errors import ConfigError, UserError

if TYPE_CHECKING:
    from llmsys_exp.plan import Plan

Row = Mapping[str, Any]

FITS, TIGHT, DOES_NOT_FIT, NO_LIMIT, FAILED = "fits", "tight", "does not fit", "no limit", "failed"
VERDICTS = (FITS, TIGHT, DOES_NOT_FIT, NO_LIMIT, FAILED)
SIZES = ("required_bytes", "allocated_bytes", "reserved_bytes", "budget_bytes", "headroom_bytes")


def plan_row(plan: Plan, *, limited: bool) -> dict[str, Any]:
    """Return the row of a plan, without number and overrides.

    Args:
        plan: what was planned.
        limited: whether anything says how much memory there is.
    """
    forecast, verdict = plan.known
    return {
        "verdict": verdict.label if limited else NO_LIMIT,
        "required_bytes": forecast.required_bytes,
        "allocated_bytes": forecast.peak_allocated_bytes,
        "reserved_bytes": forecast.peak_reserved_bytes,
        "budget_bytes": verdict.budget_bytes if limited else None,
        "headroom_bytes": verdict.headroom_bytes if limited else None,
        "largest": verdict.largest,
        "largest_bytes": verdict.largest_bytes,
        "components": dict(forecast.components),
        "phases": dict(forecast.phases),
        "settings": {choice.key: choice.value for choice in plan.choices},
        "chosen": [choice.key for choice in plan.choices if not choice.given],
        "fix": verdict.fix,
        "error": None,
        "extra": {} if plan.tokens_per_s is None or not limited else {"tokens/s": round(plan.tokens_per_s)},
    }


def failed_row(error: UserError) -> dict[str, Any]:
    """Return the row of a point that could not be planned, without number and overrides."""
    return {
        "verdict": FAILED,
        **dict.fromkeys(SIZES),
        "largest": None,
        "largest_bytes": None,
        "components": {},
        "phases": {},
        "settings": {},
        "chosen": [],
        "fix": None,
        "error": first_line(error),
    }


def first_line(error: UserError) -> str:
    """Return an error in one line: its first problem, and how many more there are."""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return f"{error.problems[0].splitlines()[0]} (and {len(error.problems) - 1} more)"
    return str(error).splitlines()[0]


def override_values(overrides: Sequence[str]) -> dict[str, str]:
    """Split `key=value` texts; a later one replaces an earlier one, as in Hydra."""
    pairs = (text.lstrip("+").partition("=") for text in overrides)
    return {key: value for key, _, value in pairs}


def axes_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the overrides that differ between rows, each with its values in order of appearance."""
    keys = dict.fromkeys(key for row in rows for key in row["overrides"])
    seen = {key: list(dict.fromkeys(row["overrides"].get(key, "") for row in rows)) for key in keys}
    return {key: values for key, values in seen.items() if len(values) > 1}


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return for each dotted key its shortest ending that no other key has."""
    return {key: _short_name(key, [other for other in keys if other != key]) for key in keys}


def _short_name(key: str, others: Sequence[str]) -> str:
    parts = key.split(".")
    for count in range(1, len(parts)):
        ending = parts[-count:]
        if not any(other.split(".")[-count:] == ending for other in others):
            return ".".join(ending)
    return key


def count_verdicts(rows: Sequence[Row]) -> dict[str, int]:
    """Count the rows of each verdict, in the order of `VERDICTS`."""
    counts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    return {name: count for name, count in counts.items() if count}


def highest_phases(phases: Mapping[str, int]) -> dict[str, int]:
    """Take the repetitions of a phase (`forward 1`, `forward 2`) together, at their highest."""
    highest: dict[str, int] = {}
    for name, size in phases.items():
        plain = name.rstrip(" 0123456789")
        highest[plain] = max(size, highest.get(plain, 0))
    return highest
