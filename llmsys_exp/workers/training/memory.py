"""What a rank holds in memory at each phase of training.

On a GPU the allocator knows. On the CPU the bytes of all live tensors are counted exactly, by storage, and
the resident set is given beside them; neither shows what autograd keeps inside a forward pass.
"""

from __future__ import annotations

import gc
import resource
import time
from typing import Any

KIB = 1024


MORE_LOOKS = 2
LOOK_AGAIN_S = 0.05


class MemoryMeter:
    """Collects one record per phase; figures of the resident set are relative to the start."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._baseline_rss_bytes = _rss_bytes()
        self.phases: list[dict[str, Any]] = []

    def record(self, phase: str) -> None:
        """Note what is held now, and the peak since the last record where the allocator can tell."""
        figures = (
            _cuda_figures(self._device)
            if self._device.type == "cuda"
            else {"live_tensor_bytes": settled_tensor_bytes()}
        )
        host = {
            "rss_bytes": _rss_bytes() - self._baseline_rss_bytes,
            "peak_rss_bytes": _peak_rss_bytes() - self._baseline_rss_bytes,
        }
        self.phases.append({"phase": phase, **figures, **host})

    def now(self) -> dict[str, int]:
        """Return what is cheap to ask in every step."""
        import torch

        if self._device.type == "cuda":
            return {
                "allocated_bytes": torch.cuda.memory_allocated(self._device),
                "reserved_bytes": torch.cuda.memory_reserved(self._device),
            }
        return {"rss_bytes": _rss_bytes() - self._baseline_rss_bytes}

    def summary(self) -> dict[str, Any]:
        """Return all phases and the largest of each figure."""
        names = {name for one in self.phases for name in one if name != "phase"}
        peaks = {name: max(one.get(name, 0) for one in self.phases) for name in sorted(names)}
        return {"baseline_rss_bytes": self._baseline_rss_bytes, "phases": self.phases, "largest": peaks}


def settled_tensor_bytes() -> int:
    """Count live tensors once gloo is done with them.

    Its thread lets go of the tensors of the last collective a moment after the collective is over, so the
    smallest of a few looks is what the program itself holds.
    """
    counts = [live_tensor_bytes()]
    for _ in range(MORE_LOOKS):
        time.sleep(LOOK_AGAIN_S)
        counts.append(live_tensor_bytes())
    return min(counts)


def live_tensor_bytes() -> int:
    """Count the bytes of every tensor alive in this process, each storage once."""
    import torch

    sizes: dict[int, int] = {}
    for one in gc.get_objects():
        # isinstance would ask proxies for their class and may run their code
        if not issubclass(type(one), torch.Tensor):
            continue
        # a leaf's gradient may have no Python object before it is asked for
        for tensor in (one, one.grad if one.is_leaf else None):
            if tensor is not None and tensor.layout is torch.strided and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _cuda_figures(device: Any) -> dict[str, int]:
    import torch

    figures = {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }
    torch.cuda.reset_peak_memory_stats(device)
    return figures


def _rss_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
