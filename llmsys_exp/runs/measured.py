"""Planned against measured memory: which figure of the worker answers which figure of the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import planner

KEPT_COMPONENTS = ("weights", "fp32 master weights", "optimizer states")
LAST_STEP = "after last step"
PHASES = (
    ("loading", "model loaded", ("load",)),
    ("engine start", "engine started", ("engine start",)),
    ("first forward and backward", "after first backward", ("forward 1", "backward 1", "reduce 1")),
    ("first step", "after first step", ("step 1",)),
)
"""Name, phase of the worker, phases of the forecast that it covers."""


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


def memory_rows(forecast: planner.Forecast | None, train: Mapping[str, Any]) -> list[MemoryRow]:
    """Pair what the forecast says with what the training worker saw; the peak comes first.

    There are none where nothing was forecast.
    """
    if forecast is None:
        return []
    ranks: Sequence[Mapping[str, Any]] = train.get("memory_per_rank") or ()
    phases = [phase for rank in ranks for phase in rank.get("phases", ()) if _is_training(phase)]
    on_gpu = any("peak_allocated_bytes" in phase for phase in phases)
    rows = _gpu_rows(forecast, phases) if on_gpu else _cpu_rows(forecast, phases)
    rows.append(
        MemoryRow(
            "main memory of a node",
            forecast.host_peak_bytes,
            _host_bytes(ranks),
            "PSS of its ranks, at phase ends",
        )
    )
    return [row for row in rows if row.measured_bytes]


def widest_tokens(train: Mapping[str, Any]) -> int:
    """Return how many tokens a row of the widest batch had, on the rank that had it; 0: not known."""
    ranks: Sequence[Mapping[str, Any]] = train.get("memory_per_rank") or ()
    return max((int(rank.get("widest_tokens", 0)) for rank in ranks), default=0)


def _gpu_rows(forecast: planner.Forecast, phases: Sequence[Mapping[str, Any]]) -> list[MemoryRow]:
    whole = (
        ("peak allocated", forecast.highest_bytes, "peak_allocated_bytes", "CUDA allocator"),
        ("peak reserved", forecast.peak_reserved_bytes, "peak_reserved_bytes", "CUDA allocator"),
        ("device in use", forecast.device_used_bytes, "device_used_bytes", "driver, at phase ends"),
    )
    rows = [MemoryRow(name, planned, _largest(phases, key), how) for name, planned, key, how in whole]
    for name, measured, planned in PHASES:
        peak = max((forecast.phases.get(one, 0) for one in planned), default=0)
        at = [phase for phase in phases if phase.get("phase") == measured]
        rows.append(
            MemoryRow(f"  {name}", peak, _largest(at, "peak_allocated_bytes"), "allocated, CUDA allocator")
        )
    return rows


def _cpu_rows(forecast: planner.Forecast, phases: Sequence[Mapping[str, Any]]) -> list[MemoryRow]:
    last = [phase for phase in phases if phase.get("phase") == LAST_STEP]
    kept = sum(forecast.components.get(name, 0) for name in KEPT_COMPONENTS)
    return [
        MemoryRow(
            "peak", forecast.peak_allocated_bytes, _largest(last, "peak_rss_bytes"), "growth of the process"
        ),
        MemoryRow(
            "kept between steps", kept, _largest(last, "live_tensor_bytes"), "tensors counted one by one"
        ),
    ]


def _host_bytes(ranks: Sequence[Mapping[str, Any]]) -> int:
    """Return the main memory of the node that needs most, its ranks together."""
    nodes: dict[str, int] = {}
    for rank in ranks:
        host = str(rank.get("host", ""))
        nodes[host] = nodes.get(host, 0) + _largest(rank.get("phases", ()), "pss_bytes")
    return max(nodes.values(), default=0)


def _is_training(phase: Mapping[str, Any]) -> bool:
    return not str(phase.get("phase", "")).startswith("evaluate")


def _largest(phases: Sequence[Mapping[str, Any]], key: str) -> int:
    return max((int(phase.get(key, 0)) for phase in phases), default=0)
