"""Jobs near the limit, played in full and judged as `llmsys plan` does; no more of them than it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.plan.resolve import settle
from planner.forecasting import forecast_training
from planner.grid.estimate import peak_bytes
from planner.training_case import TrainingCase

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


def borders(pairs: Sequence[Pair], play: Callable[[Pair], Judged | None]) -> list[Judged | None]:
    """Judge micro-batches in rising order: what fits fits at every smaller one."""
    found: list[Judged | None] = [None] * len(pairs)

    def between(first: int, last: int) -> None:
        if first > last:
            return
        middle = (first + last) // 2
        one = found[middle] = play(pairs[middle])
        if one is None:
            return
        if one.label == FITS:
            found[first:middle] = [beside(one, pairs[place]) for place in range(first, middle)]
        else:
            between(first, middle - 1)
        if one.label == NO_FIT:
            after = range(middle + 1, last + 1)
            found[middle + 1 : last + 1] = [beside(one, pairs[place]) for place in after]
        else:
            between(middle + 1, last)

    between(0, len(pairs) - 1)
    return found


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
    """Play one job, as it is sized, and judge it as `planner.verdict` does."""
    forecast = forecast_training(sized, ranks_per_node=ranks_per_node)
    fits = limit is None or forecast.survives(limit)
    sure = limit is None or forecast.band_bytes("required")[1] <= limit
    label = NO_FIT if not fits else FITS if sure else TIGHT
    pair = (sized.micro_batch, sized.grad_accum)
    return Judged(label, forecast.required_bytes, limit, "gpu", "formula", case, pair)
