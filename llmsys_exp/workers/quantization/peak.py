"""The most that one stretch of work held: on the GPU by the allocator, in main memory by the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.units import KIB

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): resets the high-water mark of resident memory


@dataclass(frozen=True)
class Peak:
    """A measurement that has begun."""

    device: Any
    rss_before_bytes: int

    @classmethod
    def begin(cls, device: Any) -> Peak:
        """Set both marks back to what is held now."""
        import torch

        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        CLEAR.write_text(RESET_PEAK)
        return cls(device, _status_bytes("VmRSS"))

    def end(self) -> dict[str, int]:
        """Return the peaks since `begin`."""
        import torch

        found = {"rss_before_bytes": self.rss_before_bytes, "peak_rss_bytes": _status_bytes("VmHWM")}
        if self.device.type != "cuda":
            return found
        return found | {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
        }


def _status_bytes(key: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * KIB
    return 0
