"""What a dry run found, in bytes, as the worker wrote it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.units import gib

STEP_PHASES = ("forward", "backward", "step")
START_PHASES = ("load", "engine start")
PHASES = (*START_PHASES, *STEP_PHASES)


@dataclass(frozen=True)
class Outcome:
    """One rank, run for a few steps.

    Attributes:
        survived: whether it got through.
        rank, world_size: which of how many.
        device: name of the GPU; `cpu`.
        limit_bytes: what its allocator might take; None: all that there was.
        phases: bytes of each phase that ended, repetitions at their highest: `allocated_bytes` at its end
            and, on a GPU, the peaks within it.
        peak_reserved_bytes, device_used_bytes: of all phases; None on the CPU.
        host_peak_bytes: the most main memory that the process had resident.
        pinned_bytes: page-locked part of it; None where torch does not tell.
        oom: where memory ran out, and how much was asked for; None if it did not.
        step_s: seconds of each step, without any communication.
        seconds: of the whole run of the process.
    """

    survived: bool
    rank: int
    world_size: int
    device: str
    limit_bytes: int | None = None
    phases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_peak_bytes: int | None = None
    pinned_bytes: int | None = None
    oom: Mapping[str, Any] | None = None
    step_s: tuple[float, ...] = ()
    seconds: float = 0.0

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Outcome:
        """Read the worker's result file."""
        return cls(
            survived=result["status"] == "ok",
            rank=result["rank"],
            world_size=result["world_size"],
            device=result["device"],
            limit_bytes=result["limit_bytes"],
            phases=result["phases"],
            peak_reserved_bytes=result["peak_reserved_bytes"],
            device_used_bytes=result["device_used_bytes"],
            host_peak_bytes=result["host"]["peak_rss_bytes"],
            pinned_bytes=result["host"]["pinned_bytes"],
            oom=result["oom"],
            step_s=tuple(result["step_s"]),
            seconds=result["seconds"],
        )

    def peak_bytes(self, phase: str) -> int | None:
        """Return the most that was allocated within a phase; None if it did not end, or on the CPU."""
        return self.phases.get(phase, {}).get("peak_allocated_bytes")

    def held_bytes(self, phase: str) -> int | None:
        """Return what was allocated at the end of a phase; None if it did not end."""
        return self.phases.get(phase, {}).get("allocated_bytes")

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The most that was allocated in the steps, as the peak of a forecast is meant."""
        return self._highest(STEP_PHASES)

    @property
    def start_peak_bytes(self) -> int | None:
        """The most that was allocated before the first step."""
        return self._highest(START_PHASES)

    def _highest(self, phases: Sequence[str]) -> int | None:
        found = (self.peak_bytes(one) for one in phases)
        return max((one for one in found if one is not None), default=None)

    def ending(self) -> str:
        """Say in one line how it ended."""
        if self.survived:
            return "it gets through"
        oom = self.oom or {}
        place = "main memory" if oom.get("kind") == "oom_host" else "memory"
        asked = f", when {oom['asked']} more were asked for" if oom.get("asked") else ""
        return f"{place} runs out in {oom.get('moment', 'an unknown phase')}{asked}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, memory in GiB."""
        return {
            "tier": "dryrun",
            "survived": self.survived,
            "rank": self.rank,
            "world_size": self.world_size,
            "device": self.device,
            "limit_gib": rounded_gib(self.limit_bytes),
            "peak_allocated_gib": rounded_gib(self.peak_allocated_bytes),
            "peak_reserved_gib": rounded_gib(self.peak_reserved_bytes),
            "engine_start_gib": rounded_gib(self.start_peak_bytes),
            "device_used_gib": rounded_gib(self.device_used_bytes),
            "phases": {
                name: {key.replace("_bytes", "_gib"): rounded_gib(value) for key, value in figures.items()}
                for name, figures in self.phases.items()
            },
            "host_peak_gib": rounded_gib(self.host_peak_bytes),
            "pinned_gib": rounded_gib(self.pinned_bytes),
            "oom": None if self.oom is None else dict(self.oom),
            "step_s": list(self.step_s),
            "seconds": self.seconds,
        }


def rounded_gib(size_bytes: int | None) -> float | None:
    """Return GiB as they are told to programs; None for what is not known."""
    return None if size_bytes is None else round(gib(size_bytes), 4)
