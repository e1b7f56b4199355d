"""What is known of one point of a sweep once it has been planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.units import GIB


@dataclass(frozen=True)
class Outcome:
    """What is known of one point; `figures` as in `point.Gated`.

    Attributes:
        fits: whether the gate lets it pass.
        sure: whether the whole band of its forecast fits.
        fix: the cheapest change, as overrides.
        fix_text: the same with what it then needs.
    """

    fits: bool
    sure: bool
    figures: dict[str, Any]
    fix: tuple[str, ...] | None = None
    fix_text: str = ""

    @property
    def refused(self) -> bool:
        """Whether it cannot be planned at all."""
        return "refused" in self.figures

    @property
    def not_forecast(self) -> str:
        """Why nothing is forecast of a point that could start; empty where something is."""
        return str(self.figures.get("not_forecast", ""))


def refused(message: str) -> Outcome:
    """A point that cannot be planned, with the reason."""
    return Outcome(False, False, {"label": "refused", "refused": message})


def figures_of(
    label: str, where: str, needed: float | None, limit: float | None, tier: str
) -> dict[str, Any]:
    """Figures of an outcome; sizes in bytes become GiB."""
    return {
        "label": label,
        "where": where,
        "needed_gib": None if needed is None else round(needed / GIB, 3),
        "limit_gib": None if limit is None else round(limit / GIB, 3),
        "tier": tier,
    }
