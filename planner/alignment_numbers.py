"""Reads the numbers of an alignment job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import CaseError
from planner.units import GIB

Case = Mapping[str, Any]
MOST = 1 << 20


def lengths_of(case: Case, kind: str) -> tuple[int, int]:
    """Tokens of prompt and completion."""
    prompt, completion = (count_of(case, key, kind) for key in ("prompt_tokens", "completion_tokens"))
    return prompt, completion


def count_of(case: Case, key: str, kind: str, default: int | None = None) -> int:
    """A whole number above 0; without a default it must be given."""
    value = case.get(key, default)
    if value is None:
        raise CaseError(f"kind {kind} needs {key}: the policy generates, so say how much")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise CaseError(f"{key} is {value!r}; it must be a whole number from 1 to {MOST}")
    return value


def beta_of(case: Case) -> float:
    """Weight of the KL term."""
    beta = case.get("beta", 0.0)
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or beta < 0:
        raise CaseError(f"beta is {beta!r}; it must be a number from 0 on")
    return float(beta)


def limit_of(case: Case) -> int | None:
    """The limit on the allocator; None: none."""
    value = case.get("memory_limit_gib")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST:
        raise CaseError(f"memory_limit_gib is {value!r}; it must be a number above 0, at most {MOST}")
    return int(value * GIB)
