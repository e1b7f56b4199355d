"""Jobs near the limit, played in full and judged as `llmsys plan` does; no more of them than it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.plan.resolve import settle
from planner.forecast import Forecast
from planner.forecasting import forecast_training
from planner.grid.estimate import peak_bytes
from planner.training_case import TrainingCase
from planner.uncertainty import lower_limit_bytes
from planner.units import MIB

ALIKE, ALIKE_BYTES = 0.035, 352 * MIB
"""More than estimates of one structure were seen to be off differently, by this share and these bytes."""
NEIGHBOURS = 1.7
"""Micro-batches further apart were not looked at."""
PRECISION = 64
"""What is played is told to one part in so many."""
FITS, TIGHT, NO_FIT, NEAR = "fits", "tight", "does not fit", "near the limit"
Pair = tuple[int, int]
"""Micro-batch and accumulation."""
Size = tuple[Any, Any, Any]
"""Micro-batch, accumulation and global batch as a configuration has them."""


@dataclass(frozen=True)
class Judged:
    """What is known of one setting.

    Attributes:
        label: the word of `llmsys plan`; `near the limit` where that would have taken one play too many.
        needed_bytes: what it requires, or its estimate.
        limit_bytes: None where no limit is known.
        where: gpu or host.
        tier: `estimate` or `formula`.
        case: the structure that was judged, for who looks for a change; None where it was refused.
        pair: its micro-batch and accumulation.
        refused: why it cannot be planned.
    """

    label: str
    needed_bytes: float = 0.0
    limit_bytes: int | None = None
    where: str = "gpu"
    tier: str = "estimate"
    case: TrainingCase | None = None
    pair: Pair = (1, 1)
    refused: str = ""


@dataclass
class Plays:
    """How many jobs may still be played in full."""

    left: int

    def take(self) -> bool:
        """Whether one more may be played; counts it."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def at_size(config: Config, size: Size) -> Config:
    """Return a configuration with other sizes."""
    micro, accum, total = size
    training = replace(config.training, micro_batch=micro, grad_accum=accum, global_batch=total)
    return replace(config, training=training)


def borders(
    pairs: Sequence[Pair],
    play: Callable[[Pair], Judged | None],
    say: Callable[[Judged, Pair], Judged | None],
    *,
    first: int,
) -> list[Judged | None]:
    """Judge micro-batches in rising order with few plays.

    Args:
        pairs: what to judge.
        play: judges one; None when there are no plays left.
        say: what one that was played says of another; None where that takes a play.
        first: place of the pair to begin with.
    """
    found: list[Judged | None] = [None] * len(pairs)
    left = [(range(len(pairs)), first)]
    while left:
        places, middle = left.pop()
        one = found[middle] = play(pairs[middle])
        if one is None:
            break
        for place in places:
            if place != middle:
                found[place] = say(one, pairs[place])
        unknown = [place for place in places if found[place] is None]
        for side in ([at for at in unknown if at > middle], [at for at in unknown if at < middle]):
            if side:
                left.append((range(side[0], side[-1] + 1), side[len(side) // 2]))
    return found


def neighbour(one: Judged, pair: Pair) -> Judged | None:
    """Judge a setting by one of its structure that was played; None where only its own play tells.

    What fits does so at every smaller micro-batch, and what does not, at no larger one. Otherwise the
    estimate is corrected by what the play made of its own.
    """
    assert one.case is not None  # it was played
    assert one.limit_bytes is not None  # or it would not be near it
    other = beside(one, pair)
    if (one.label == FITS and pair[0] <= one.pair[0]) or (one.label == NO_FIT and pair[0] >= one.pair[0]):
        return other
    if not 1 / NEIGHBOURS <= pair[0] / one.pair[0] <= NEIGHBOURS:
        return None
    off = other.needed_bytes * ALIKE + ALIKE_BYTES
    if other.needed_bytes + off <= lower_limit_bytes(one.case, one.limit_bytes):
        return replace(other, label=FITS)
    return replace(other, label=NO_FIT) if other.needed_bytes - off > one.limit_bytes else None


def beside(one: Judged, pair: Pair) -> Judged:
    """The verdict of a neighbour, with what it needs by the same measure."""
    assert one.case is not None  # it was played
    sizes = [one.pair, pair]
    micro, accum = (np.array([size[at] for size in sizes], dtype=np.float64) for at in (0, 1))
    own, other = peak_bytes(one.case, micro, one.case.seq_len, accum)
    return replace(one, pair=pair, tier="estimate", needed_bytes=one.needed_bytes * float(other / own))


def resolved(config: Config) -> Judged:
    """Judge a setting as `llmsys plan` does."""
    try:
        settled = settle(config)
    except UserError as error:
        return Judged(NO_FIT, refused=str(error))
    case = settled.case
    return judge(case, case, settled.budget_bytes, config.hardware.gpus_per_node)


def judge(sized: TrainingCase, case: TrainingCase, limit: int | None, ranks_per_node: int) -> Judged:
    """Play one job, as it is sized, and judge it as the planner's search does."""
    forecast = forecast_training(sized, ranks_per_node=ranks_per_node)
    needs = _Needs(forecast)
    fits = limit is None or needs.at_most(limit)
    sure = limit is None or (fits and _surely(forecast, needs, sized, limit))
    label = NO_FIT if not fits else FITS if sure else TIGHT
    pair = (sized.micro_batch, sized.grad_accum)
    return Judged(label, needs.narrowed(), limit, "gpu", "formula", case, pair)


def _surely(forecast: Forecast, needs: _Needs, case: TrainingCase, limit: int) -> bool:
    """Whether the whole band of a forecast fits."""
    if forecast.band_bytes("peak_reserved")[1] <= limit:
        return True
    return needs.at_most(lower_limit_bytes(case, limit))


class _Needs:
    """What a job requires: between two figures that replays bring together."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._low = forecast.highest_bytes
        self._high = max(forecast.peak_reserved_bytes, self._low) if forecast.fragments else self._low

    def at_most(self, limit: int) -> bool:
        """Whether the job gets through under a limit."""
        if not self._low <= limit < self._high:
            return limit >= self._high
        least = self._forecast.least_limit(limit)
        if least is None:
            self._low = limit + 1
        else:
            self._high = min(least, limit)
        return least is not None

    def narrowed(self) -> int:
        """Return what it requires, to one part in `PRECISION`."""
        while self._high - self._low > self._high // PRECISION:
            self.at_most((self._low + self._high) // 2)
        return (self._low + self._high) // 2
