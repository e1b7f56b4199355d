"""The likely cause of what failed: the drift that explains best which figures differ and which do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmsys_exp.reproduce.drift import KINDS, MEMORY, NUMBERS_PARTS, Drift, Effect

RECORD = "record"


@dataclass(frozen=True)
class Blamed:
    """A drift with how well it explains what was seen."""

    drift: Drift
    explains: tuple[str, ...]
    """Parts that failed and in which it may show."""
    against: tuple[str, ...]
    """Parts that hold although it may show in them."""


def likely_causes(failed: Sequence[str], held: Sequence[str], drifts: Sequence[Drift]) -> list[Blamed]:
    """Return the drifts that may have caused a failure, likeliest first.

    A cause that would have to show in figures that hold is less likely than one that need not: another
    learning rate leaves the first loss as it was, other data do not.

    Args:
        failed: parts of the run, as `drift` names them, with a figure out of bounds.
        held: parts with figures within bounds and none without.
        drifts: all that is known to differ.
    """
    found = []
    for drift in drifts:
        if drift.effect < _least_effect(failed):
            continue
        explains = tuple(part for part in failed if part in drift.shows_in)
        # a hand may have changed a single figure, so that others hold says nothing for it
        against = () if drift.kind == RECORD else tuple(part for part in held if part in drift.shows_in)
        if explains:
            found.append(Blamed(drift, explains, against))
    return sorted(found, key=lambda one: _rank(one, len(failed)))


def _rank(one: Blamed, failed: int) -> tuple[float, int, int, int]:
    """Unexplained failures weigh most, then contradictions; of equals the likelier and narrower cause."""
    drift, unexplained = one.drift, failed - len(one.explains)
    doubt = 2.0 * unexplained + len(one.against)
    return doubt, -drift.effect, KINDS.index(drift.kind), len(drift.shows_in)


def _least_effect(failed: Sequence[str]) -> Effect:
    """Memory and forecast may differ for less than numbers do."""
    if any(part in NUMBERS_PARTS for part in failed):
        return Effect.NUMBERS
    return Effect.MEMORY if MEMORY in failed else Effect.NOTHING
