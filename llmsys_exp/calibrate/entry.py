"""What is kept of a device: constants and speed factors, each with its number of runs and their spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FEWEST = 2
"""A figure of fewer runs is shown and not used."""
MOST_GIB = 64.0
SPEED_RANGE = (1e-3, 1e4)
CONSTANTS = ("context_gib", "after_context_gib", "nccl_gib")


@dataclass(frozen=True)
class Figure:
    """The median of what runs measured."""

    value: float
    runs: int
    low: float
    high: float

    @property
    def is_used(self) -> bool:
        """Whether plans take it."""
        return self.runs >= FEWEST

    @property
    def slack(self) -> float:
        """How far the largest was above the median."""
        return self.high - self.value


def figure_of(values: Sequence[float]) -> Figure | None:
    """Return median, number and extremes; None of nothing."""
    if not values:
        return None
    rounded = [round(one, 4) for one in (statistics.median(values), min(values), max(values))]
    return Figure(rounded[0], len(values), rounded[1], rounded[2])


@dataclass(frozen=True)
class Entry:
    """One device, as runs measured it."""

    name: str
    driver: str
    kind: str
    date: str
    runs: tuple[str, ...]
    constants: Mapping[str, Figure] = field(default_factory=dict)
    """GiB of GPU memory outside the allocator, by `CONSTANTS`."""
    speed: Mapping[str, Figure] = field(default_factory=dict)
    """Measured over forecast seconds of a step, by the type that is computed in."""
    outside_gib: Mapping[str, Figure] = field(default_factory=dict)
    """All of what is outside of the allocator, by `one rank` and `several ranks`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"runs": list(self.runs)}


def read_entry(content: Any) -> Entry:
    """Return an entry of the file.

    Raises:
        ValueError: when it is of another form, or holds what nobody can have measured.
    """
    if not isinstance(content, Mapping):
        raise ValueError("an entry is no group of keys")
    texts = {name: content.get(name) for name in ("name", "driver", "kind", "date")}
    runs = content.get("runs")
    if not all(isinstance(one, str) and one for one in texts.values()) or not isinstance(runs, list):
        raise ValueError("an entry lacks name, driver, kind, date or runs")
    sizes = (0.0, MOST_GIB)
    return Entry(
        **texts,  # type: ignore[arg-type]
        runs=tuple(map(str, runs)),
        constants=_figures(content.get("constants"), sizes, CONSTANTS),
        speed=_figures(content.get("speed"), SPEED_RANGE),
        outside_gib=_figures(content.get("outside_gib"), sizes),
    )


def _figures(
    content: Any, limits: tuple[float, float], names: Sequence[str] | None = None
) -> dict[str, Figure]:
    if not isinstance(content, Mapping):
        raise ValueError("constants, speed or outside_gib is no group of keys")
    found: dict[str, Figure] = {}
    for name, one in content.items():
        if names is not None and name not in names:
            raise ValueError(f"{name} is no constant that is calibrated")
        keys = ("value", "low", "high", "runs")
        numbers = [one.get(key) for key in keys] if isinstance(one, Mapping) else []
        if len(numbers) != len(keys) or not all(_is_number(number) for number in numbers):
            raise ValueError(f"{name} lacks one of {', '.join(keys)}")
        value, low, high, runs = numbers
        if not limits[0] <= low <= value <= high <= limits[1] or runs < 1:
            raise ValueError(f"{name} is {value}, between {low} and {high} of {runs} runs")
        found[str(name)] = Figure(float(value), int(runs), float(low), float(high))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
