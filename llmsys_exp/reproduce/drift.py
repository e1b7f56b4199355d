"""A drift: something that is no longer as it was when a run was recorded, with what it may change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Effect(IntEnum):
    """What a drift may change, least serious first."""

    NOTHING = 0
    SPEED = 1
    MEMORY = 2
    NUMBERS = 3

    @property
    def words(self) -> str:
        """As people read it."""
        return ("nothing", "speed only", "memory", "numbers")[self]


FIRST, LATER, RATE, TOKENS = "first loss", "later losses", "learning rate", "tokens"
EVALUATION, ANSWERS, WEIGHTS = "evaluation", "answers", "weights"
MEMORY, FORECAST, SPEED, LENGTH = "memory", "forecast", "speed", "length"
PARAMETERS = "trained parameters"
LOSSES = (FIRST, LATER, EVALUATION, WEIGHTS)
ALL_NUMBERS = (*LOSSES, TOKENS, ANSWERS)
NUMBERS_PARTS = (*ALL_NUMBERS, RATE, LENGTH, PARAMETERS)
"""Parts of a run that a drift may show in; `blame` tells causes apart by them."""

KINDS = (
    "record",
    "command line",
    "data",
    "model",
    "settings",
    "code",
    "packages",
    "python",
    "hardware",
    "driver",
    "variables",
    "plan",
)
"""Where a drift can be, in the order in which equals are listed and blamed."""


@dataclass(frozen=True)
class Drift:
    """One thing that differs between then and now."""

    kind: str
    """One of `KINDS`."""
    key: str
    """What it is about: a setting, package, file or figure."""
    what: str
    """In a sentence."""
    effect: Effect
    shows_in: tuple[str, ...] = ()
    """Parts of the run that it may change."""
    then: Any = None
    now: Any = None
    do: str = ""
    """What would undo it."""
    blocks: bool = False
    """Nothing is run as long as it is there."""

    @property
    def matters(self) -> bool:
        """Whether results may differ for it."""
        return self.effect >= Effect.MEMORY

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "key": self.key,
            "what": self.what,
            "effect": self.effect.words,
            "shows_in": list(self.shows_in),
            "then": self.then,
            "now": self.now,
            "do": self.do,
            "blocks": self.blocks,
        }


def most_serious_first(drifts: Iterable[Drift]) -> list[Drift]:
    """Sort: what blocks, then by effect, then by kind, each group as it came."""
    return sorted(drifts, key=lambda one: (not one.blocks, -one.effect, KINDS.index(one.kind)))


def short(value: Any, width: int = 40) -> str:
    """Write a value on one line, hashes and long texts cut."""
    text = "none" if value is None else str(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."
