"""What a sweep is made of: its points and what the gate says of them, as plain values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who looks at a sweep does not pay for Hydra
    from llmsys_exp.sweeps.points.composing import Resolved


@dataclass(frozen=True)
class Point:
    """One combination of settings.

    Attributes:
        number: from 1, in the order of the sweep.
        key: hash of the configuration, 16 hex digits. The first eight are what `config_hash` makes of it;
            these alone would let one in a hundred sweeps of 10,000 points lose a point.
        overrides: what is this point's own; its command line is the sweep's `base` and then these.
    """

    number: int
    key: str
    overrides: tuple[str, ...]

    def own(self, shared: Collection[str]) -> str:
        """Return what tells it from the others, in one line; see `shared_overrides`."""
        return " ".join(text for text in self.overrides if text not in shared)


def shared_overrides(points: Sequence[Point]) -> frozenset[str]:
    """Return the overrides that every point of a sweep has: they tell none from the others."""
    if len(points) < 2:
        return frozenset()
    return frozenset(points[0].overrides).intersection(*(point.overrides for point in points[1:]))


@dataclass(frozen=True)
class Points:
    """The points of a sweep and what they have in common.

    Attributes:
        points: each configuration once.
        dropped: combinations left out because an earlier one has the same configuration.
        base: overrides that all points share.
        resolved: the configuration of each point.
    """

    points: tuple[Point, ...]
    dropped: int
    base: tuple[str, ...]
    resolved: tuple[Resolved, ...]


@dataclass(frozen=True)
class Gated:
    """What the gate says of a point.

    Attributes:
        point: the point, or with `filled_from` the one that takes its place.
        verdict: `runs`, `tight` (it runs, and may not get through: its forecast is near the limit, or over
            it under the policy `warn`) or `skipped`.
        figures: plain values for the ledger. `label` is the word of `llmsys plan`; `where` (gpu, host, disk),
            `needed_gib` and `limit_gib`; `tier` is `estimate` where a point is far from the limit and
            `formula` where it was played in full; `refused` is why the planner cannot plan it at all.
        fix: the cheapest change that makes it fit, with what it then needs; None where none is known.
        filled_from: overrides of the point in whose place this one stands.
    """

    point: Point
    verdict: str
    figures: dict[str, Any]
    fix: str | None = None
    filled_from: tuple[str, ...] | None = None
