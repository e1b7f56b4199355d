"""What a forecast says: bytes by component, phase and place, and the verdict against a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from planner.errors import OutOfMemory
from planner.host import host_peak_bytes
from planner.memory.allocator import CachingAllocator
from planner.memory.replay import replay
from planner.uncertainty import FIGURES, Residuals
from planner.units import GIB, MIB, gib

Events = list[tuple[int, int, int]]
REQUIRED_STEP = 16 * MIB  # the smallest surviving limit is found to this precision
PROBES = 16
FORMULA, ESTIMATE, SIMULATE = "formula", "estimate", "simulate"
"""Tiers: how an answer was found."""


@dataclass(frozen=True)
class Verdict:
    """Whether a job fits a budget of GPU memory.

    `budget_bytes` is what the allocator may reserve on one GPU; `headroom_bytes` is what is left of it
    beside what the job requires (negative when it does not fit). `fits` is the point forecast's answer; the
    label is `fits` only when the whole band around what is required fits, `tight` when only its middle does.
    """

    fits: bool
    label: str
    budget_bytes: int
    headroom_bytes: int
    largest: str
    largest_bytes: int
    fix: str | None = None
    band_bytes: tuple[int, int] = (0, 0)
    """Lower and upper end of what the job may require."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "fits": self.fits,
            "label": self.label,
            "budget_gib": round(gib(self.budget_bytes), 3),
            "headroom_gib": round(gib(self.headroom_bytes), 3),
            "largest": self.largest,
            "largest_gib": round(gib(self.largest_bytes), 3),
            "fix": self.fix,
            "required_band_gib": [round(gib(end), 3) for end in self.band_bytes],
        }


@dataclass(frozen=True)
class Forecast:
    """Memory of one GPU (rank 0) and of its host.

    Attributes:
        tier: how the answer was found.
        components: bytes by component at the highest moment of a training step; they sum to
            `peak_allocated_bytes`.
        phases: peak bytes of each phase, in order.
        host: bytes of main memory on one node, by use.
        disk: bytes on disk, by use.
        start_peak_bytes: highest moment of loading and engine start.
        residuals: how far the figures of its class have been off.
        device_extra_bytes: CUDA context, libraries and NCCL, outside the allocator.
        seconds: time the forecast took.
    """

    tier: str
    peak_allocated_bytes: int
    start_peak_bytes: int
    peak_reserved_bytes: int
    device_extra_bytes: int
    components: dict[str, int]
    phases: dict[str, int]
    host: dict[str, int]
    disk: dict[str, int]
    seconds: float
    residuals: Residuals
    notes: tuple[str, ...] = ()
    events: Events = field(default_factory=lambda: [], repr=False)
    expandable_segments: bool = False
    fragments: bool = True
    """Whether the device's allocator keeps freed blocks, as CUDA's does and a CPU's does not."""
    kept_required_bytes: int | None = None
    """What is required, where the events that it is found by have been left out: see `kept`."""

    def kept(self) -> Forecast:
        """The same without its events, for who keeps many; `reserved_under` and `gets_through` need them."""
        return replace(self, events=[], kept_required_bytes=self.required_bytes)

    @property
    def highest_bytes(self) -> int:
        """The highest moment of loading, engine start and steps."""
        return max(self.peak_allocated_bytes, self.start_peak_bytes)

    @property
    def device_used_bytes(self) -> int:
        """What nvidia-smi would show for this process when nothing limits the allocator."""
        return self.peak_reserved_bytes + self.device_extra_bytes

    @property
    def host_peak_bytes(self) -> int:
        """The most one node holds in main memory at one time; `host` also lists what comes and goes."""
        return host_peak_bytes(self.host)

    @cached_property
    def required_bytes(self) -> int:
        """The smallest allocator limit above which the job survives whatever the limit.

        Between the highest allocated moment and the most that would be reserved: cached blocks are given
        back before a request fails, fragments are not. A tighter limit gives back more and may get
        through by luck where a wider one fails; such luck does not count.
        """
        if self.kept_required_bytes is not None:
            return self.kept_required_bytes
        low = self.highest_bytes
        if not self.fragments:
            return low
        return safe_limit(self.least_limit, low=low, high=max(self.peak_reserved_bytes, low))

    def survives(self, limit_bytes: int) -> bool:
        """Whether the allocator gets through under a limit."""
        if limit_bytes >= self.peak_reserved_bytes:
            return True
        if limit_bytes < self.highest_bytes:
            return False
        return limit_bytes >= self.required_bytes

    def band_bytes(self, figure: str) -> tuple[int, int]:
        """Lower and upper end of `peak_allocated`, `required` or `peak_reserved`.

        A job never requires more than it would reserve without a limit.
        """
        low, high = self.residuals.band_bytes(figure, getattr(self, f"{figure}_bytes"))
        if figure == "required":
            high = min(high, self.band_bytes("peak_reserved")[1])
        return low, high

    def reserved_under(self, limit_bytes: int) -> int:
        """What the allocator reserves when a limit makes it give cached blocks back.

        Raises:
            OutOfMemory: when the job does not get through.
        """
        return self._replay(limit_bytes).peak_reserved

    def _replay(self, limit_bytes: int) -> CachingAllocator:
        if self.kept_required_bytes is not None:
            raise ValueError("the events of this forecast have been left out")
        return replay(self.events, limit_bytes=limit_bytes, expandable_segments=self.expandable_segments)

    def gets_through(self, limit_bytes: int) -> bool:
        """Whether a job gets through under exactly this limit, be it by luck."""
        if not self.fragments:
            return limit_bytes >= self.highest_bytes
        return self.least_limit(limit_bytes) is not None

    def least_limit(self, limit_bytes: int) -> int | None:
        """The smallest limit under which all goes as under this one; None: it does not get through."""
        try:
            return self._replay(limit_bytes).least_limit
        except OutOfMemory:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, memory in GiB."""
        return {
            "tier": self.tier,
            "peak_allocated_gib": _rounded(self.peak_allocated_bytes),
            "required_gib": _rounded(self.required_bytes),
            "peak_reserved_gib": _rounded(self.peak_reserved_bytes),
            "device_used_gib": _rounded(self.device_used_bytes),
            "engine_start_gib": _rounded(self.start_peak_bytes),
            "bands": self._bands(),
            "components": {k: _rounded(v) for k, v in self.components.items()},
            "phases": {k: _rounded(v) for k, v in self.phases.items()},
            "host": {k: _rounded(v) for k, v in self.host.items()},
            "host_peak_gib": _rounded(self.host_peak_bytes),
            "disk": {k: _rounded(v) for k, v in self.disk.items()},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 4),
        }

    def _bands(self) -> dict[str, Any]:
        ends = {f"{name}_gib": [_rounded(end) for end in self.band_bytes(name)] for name in FIGURES}
        return {"class": self.residuals.name, "rows": self.residuals.rows, **ends}


def _rounded(nbytes: int) -> float:
    return round(nbytes / GIB, 4)


def safe_limit(least: Callable[[int], int | None], *, low: int, high: int) -> int:
    """The smallest value from which on a condition holds at every probe; `high` holds.

    Probes downwards in even steps to the first failure, then between it and the lowest value that holds. A
    probe that holds answers for all values down to the one that `least` returns, so few are needed.

    Args:
        least: the smallest value that holds if this one does; None where it does not.
        low: nothing below it holds.
        high: holds.
    """
    span, lowest, failed = high - low, high, low - 1
    for step in range(1, PROBES + 1):
        probe = high - span * step // PROBES
        if probe >= lowest:
            continue
        found = least(probe)
        if found is None:
            failed = probe
            break
        lowest = min(found, probe)
    probe = lowest - REQUIRED_STEP  # the value that was returned is often the boundary
    while lowest - failed > REQUIRED_STEP:
        found = least(probe)
        if found is None:
            failed = probe
        else:
            lowest = min(found, probe)
        probe = (failed + lowest) // 2
    return lowest
