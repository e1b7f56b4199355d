"""Loss and gradient norm of a step, brought to the host while the device is still at work on the update.

Reading a figure waits for all that was queued before it. Both are known before the optimizer moves the
weights, so they are copied at that point, and the host queues the next step while the weights move.
"""

from __future__ import annotations

from typing import Any


class Figures:
    """Copies of a step's figures on their way to the host."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._norm: _Copy | None = None
        # ZeRO's wrappers keep torch's optimizer inside; without one, the engine's is torch's own
        plain = getattr(engine.optimizer, "optimizer", None)
        if hasattr(plain, "register_step_pre_hook"):
            plain.register_step_pre_hook(self._before_update)

    def begin(self, values: Any, norm: Any, divisor: float = 1.0) -> None:
        """Start to copy `values`, a vector, and the norm; else the engine tells it, `divisor` times."""
        self._divisor = divisor
        self._values = _Copy(values)
        self._norm = None if norm is None else _Copy(norm)

    def values(self) -> list[float]:
        """Return what `begin` was given."""
        return self._values.read().tolist()

    def norm(self) -> float | None:
        """Return the gradient's norm over all ranks; None where the engine does not know it."""
        if self._norm is not None:
            return float(self._norm.read()) / self._divisor
        told = self._engine.get_global_grad_norm()
        return None if told is None else float(told) / self._divisor

    def _before_update(self, *_: Any) -> None:
        # at stage 3 the optimizer runs once for every group of weights
        told = None if self._norm else getattr(self._engine.optimizer, "_global_grad_norm", None)
        if hasattr(told, "device"):
            self._norm = _Copy(told)


class _Copy:
    """A tensor on its way to page-locked memory."""

    def __init__(self, source: Any) -> None:
        import torch

        self._arrived: Any = None
        self._tensor = source.detach()
        if source.is_cuda:
            self._tensor = torch.empty_like(self._tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(source.detach(), non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> Any:
        """Wait for this copy alone."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor
