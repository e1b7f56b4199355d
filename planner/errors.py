"""What the planner refuses, with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CaseError(ValueError):
    """A case cannot be planned: keys are missing, unknown, contradictory or not supported."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class NotSimulated(CaseError):
    """A case whose code cannot be run on shapes, here or at all; nothing need be wrong with it."""


class OutOfMemory(Exception):
    """The emulated allocator could not serve a request under its limit."""

    def __init__(self, requested_bytes: int, reserved_bytes: int, limit_bytes: int) -> None:
        self.requested_bytes, self.reserved_bytes, self.limit_bytes = (
            requested_bytes,
            reserved_bytes,
            limit_bytes,
        )
        super().__init__(f"{requested_bytes} bytes asked, {reserved_bytes} reserved, limit {limit_bytes}")


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence naming the closest valid name and all the others.

    >>> did_you_mean("lorra", ["lora", "full"])
    'Did you mean lora? Known: full, lora.'
    """
    names = sorted(valid)
    near = get_close_matches(name, names, n=1, cutoff=0.55)
    return (f"Did you mean {near[0]}? " if near else "") + f"Known: {', '.join(names)}."
