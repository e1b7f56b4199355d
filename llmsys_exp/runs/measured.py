"""Planned against measured memory: which figure of the worker answers which figure of the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import planner

KEPT_COMPONENTS = ("weights", "fp32 master weights", "optimizer states")
LAST_STEP = "after last step"


@dataclass(frozen=True)
class MemoryRow:
    """One figure, planned and measured on the rank that needed most."""

    name: str
    planned_bytes: int
    measured_bytes: int
    how: str
    """How it was measured."""

    @property
    def difference(self) -> float:
        """Share by which the measured value exceeds the planned one."""
        return self.measured_bytes / self.planned_bytes - 1 if self.planned_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def memory_rows(forecast: planner.Forecast, train: Mapping[str, Any]) -> list[MemoryRow]:
    """Pair what the forecast says with what the training worker saw; the peak comes first."""
    ranks: Sequence[Mapping[str, Any]] = train.get("memory_per_rank") or ()
    phases = [phase for rank in ranks for phase in rank.get("phases", ()) if _is_training(phase)]
    if any("peak_allocated_bytes" in phase for phase in phases):
        return [
            MemoryRow(
                "peak allocated",
                forecast.peak_allocated_bytes,
                _largest(phases, "peak_allocated_bytes"),
                "CUDA allocator",
            ),
            MemoryRow(
                "peak reserved",
                forecast.peak_reserved_bytes,
                _largest(phases, "peak_reserved_bytes"),
                "CUDA allocator",
            ),
        ]
    last = [phase for phase in phases if phase.get("phase") == LAST_STEP]
    kept = sum(forecast.components.get(name, 0) for name in KEPT_COMPONENTS)
    rows = [
        MemoryRow(
            "peak", forecast.peak_allocated_bytes, _largest(last, "peak_rss_bytes"), "growth of the process"
        ),
        MemoryRow(
            "kept between steps", kept, _largest(last, "live_tensor_bytes"), "tensors counted one by one"
        ),
    ]
    return [row for row in rows if row.measured_bytes]


def _is_training(phase: Mapping[str, Any]) -> bool:
    return not str(phase.get("phase", "")).startswith("evaluate")


def _largest(phases: Sequence[Mapping[str, Any]], key: str) -> int:
    return max((int(phase.get(key, 0)) for phase in phases), default=0)
