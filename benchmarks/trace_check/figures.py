"""What is compared: bytes beyond the weights at three moments of a step."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Figures:
    """One micro-batch, without optimizer. Everything but the first two is beyond the weights."""

    parameters: int
    weight_bytes: int
    forward_end_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int

    def errors(self, traced: Figures) -> dict[str, float]:
        """Planned / traced - 1, by figure."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) / getattr(traced, name) - 1 for name in names}
