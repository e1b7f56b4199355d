"""How fast a run is: tokens a second, and the share of the GPUs' arithmetic that the model needs (MFU).

What a token costs comes with the plan (`planner/work.py` states formula and convention), so nothing is looked
up here. Speed is told without the first steps: they compile kernels and fill caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.workers import events

WARMUP_STEPS = 2


class SpeedMeter:
    """Turns tokens and seconds of each step, over all ranks, into figures of speed."""

    def __init__(self, plan: Mapping[str, Any], *, world_size: int, device: Any, unit: str = "token") -> None:
        self._rate = f"{unit}s_per_s"
        work = plan.get("work") or {}
        self._flops_per_token = float(work.get("flops_per_token") or 0)
        self._flops_per_pair = float(work.get("flops_per_pair") or 0)
        self._peak_flops_per_s = _peak(work, device) * world_size
        self._steps = 0
        self._all, self._warm = _Sum(), _Sum()

    def step(self, *, tokens: int, seconds: float, pairs: int = 0) -> dict[str, float]:
        """Return `tokens_per_s` (of another unit: images_per_s), and `mfu` where the GPU's peak is known.

        Args:
            tokens: of the step over all ranks, without padding.
            seconds: of the step.
            pairs: sum of the squared lengths of its sequences; a packed row counts each of them. Left out,
                attention scores count nothing and the MFU is too low by their share.
        """
        self._steps += 1
        flops = self._flops_per_token * tokens + self._flops_per_pair * pairs
        self._all.add(tokens, seconds, flops)
        if self._steps > WARMUP_STEPS:
            self._warm.add(tokens, seconds, flops)
        return self._figures(tokens, seconds, flops)

    def summary(self) -> dict[str, float]:
        """Return the figures of the run: of the steps after the first two, where there are any."""
        steady = self._warm if self._warm.seconds else self._all
        if not steady.seconds:
            return {}
        return self._figures(steady.tokens, steady.seconds, steady.flops)

    def _figures(self, tokens: int, seconds: float, flops: float) -> dict[str, float]:
        figures = {self._rate: tokens / seconds}
        if self._peak_flops_per_s and flops:
            figures["mfu"] = flops / seconds / self._peak_flops_per_s
        return figures


class _Sum:
    def __init__(self) -> None:
        self.tokens, self.seconds, self.flops = 0, 0.0, 0.0

    def add(self, tokens: int, seconds: float, flops: float) -> None:
        self.tokens += tokens
        self.seconds += seconds
        self.flops += flops


def _peak(work: Mapping[str, Any], device: Any) -> float:
    """Return the peak of the card that was planned for; 0 where it is unknown or another card is used."""
    peak = float(work.get("peak_flops_per_s") or 0)
    if not peak or device.type != "cuda":
        return 0.0
    import torch

    found = "{}.{}".format(*torch.cuda.get_device_capability(device))
    if found == work.get("compute_capability"):
        return peak
    name = torch.cuda.get_device_name(device)
    events.note(f"No MFU is shown: the run was planned for {work.get('gpu')} and this is {name}")
    return 0.0
