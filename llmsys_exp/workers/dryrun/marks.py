"""What the rank holds at the end of each phase, and the most within it."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from llmsys_exp.workers.training.memory import cuda_figures, live_tensor_bytes

PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")


class Marks:
    """One entry a phase, in order; repetitions of a phase are taken together at their highest."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.phases: dict[str, dict[str, int]] = {}
        # as the training worker does: what the imports have made stays out of every collection
        gc.collect()
        gc.freeze()

    def end(self, phase: str) -> None:
        """Note what is held now and the most since the last phase ended.

        Nothing waits for the device, as nothing does in training: the allocator's figures are the host's.
        """
        if self._device.type == "cuda":
            figures = cuda_figures(self._device)
        else:  # what autograd keeps within a forward pass has no Python object: held is all that is known
            figures = {"allocated_bytes": live_tensor_bytes()}
        before = self.phases.get(phase, {})
        self.phases[phase] = {key: max(value, before.get(key, 0)) for key, value in figures.items()}

    def saw(self, batch: Mapping[str, Any]) -> None:
        """Take no note of a batch: each fills the length."""

    def record(self, phase: str) -> None:
        """Take no note of the phases of the training loop, which are other ones."""

    def highest(self, key: str) -> int | None:
        """Return the largest of a figure over all phases; None where the device does not tell it."""
        return max((one[key] for one in self.phases.values() if key in one), default=None)
