"""One figure of a run, logged and reproduced, with the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.reproduce.tolerances import EXACT, Tolerance


@dataclass(frozen=True)
class Row:
    """One metric."""

    name: str
    part: str
    """Part of the run, as `drift` names it."""
    logged: Any
    reproduced: Any
    difference: str
    tolerance: str
    passed: bool | None
    """None: shown and not judged."""
    reason: str = ""
    """Why the tolerance is what it is."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


def number_row(name: str, part: str, logged: Any, found: Any, tolerance: Tolerance) -> Row | None:
    """Return the row of a figure: None where the log has none, a failure where only the new run has none."""
    if not _is_number(logged):
        return None
    if not _is_number(found):
        passed = None if tolerance.bound is None else False
        return Row(name, part, logged, found, "missing", tolerance.words, passed, tolerance.reason)
    gap = tolerance.distance(float(logged), float(found))
    passed = tolerance.allows(float(logged), float(found))
    return Row(name, part, logged, found, shown(gap, tolerance), tolerance.words, passed, tolerance.reason)


def same_row(name: str, part: str, logged: Any, found: Any, reason: str = "") -> Row | None:
    """Return the row of something that is equal or not; None where the log has none."""
    if logged is None:
        return None
    is_same = logged == found
    said = "none" if is_same else "differs"
    return Row(name, part, logged, found, said, "exact", is_same, reason or EXACT[1])


def shown(gap: float, tolerance: Tolerance) -> str:
    """Write a difference as its tolerance is written."""
    if gap == 0:
        return "none"
    if tolerance.absolute:
        return f"{gap:.3g}"
    # three digits of a per mille of a per cent say nothing
    return f"{100 * gap:.2g} %" if gap < 10 else f"{gap:.3g} times"


def parts_of(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the parts of the run with a failure, and those that were judged and hold."""
    failed = list(dict.fromkeys(row.part for row in rows if row.passed is False))
    held = [row.part for row in rows if row.passed is True and row.part not in failed]
    return failed, list(dict.fromkeys(held))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
