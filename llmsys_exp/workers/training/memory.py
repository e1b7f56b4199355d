"""What a rank holds in memory at each phase of training.

On a GPU the allocator knows, and the driver says what the process takes in all. On the CPU the bytes of all
live tensors are counted exactly, by storage, and the resident set is given beside them; neither shows what
autograd keeps inside a forward pass.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.units import KIB

EVALUATION = "evaluate"
"""Phases of that name hold no training step; their peaks are kept apart."""
MORE_LOOKS = 2
LOOK_AGAIN_S = 0.05


class MemoryMeter:
    """Collects one record per phase; figures of the resident set are relative to the start."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._baseline_rss_bytes = _rss_bytes()
        self._peak_bytes = 0
        self._widest_tokens = 0
        self.phases: list[dict[str, Any]] = []
        # what the imports have made, some 400,000 objects, stays and holds no tensor of the job: left out of
        # every look for tensors, and of every collection
        gc.collect()
        gc.freeze()

    def record(self, phase: str) -> None:
        """Note what is held now, and the peak since the last record where the allocator can tell.

        Call it before an evaluation too, or the peak of the steps before would count as the evaluation's.
        """
        if self._device.type == "cuda":
            figures = cuda_figures(self._device)
            if not phase.startswith(EVALUATION):
                self._peak_bytes = max(self._peak_bytes, figures["peak_allocated_bytes"])
        else:
            figures = {"live_tensor_bytes": settled_tensor_bytes()}
        host = {
            "rss_bytes": _rss_bytes() - self._baseline_rss_bytes,
            "peak_rss_bytes": peak_rss_bytes() - self._baseline_rss_bytes,
            "pss_bytes": _pss_bytes(),
        }
        self.phases.append({"phase": phase, **figures, **host})

    def saw(self, batch: Mapping[str, Any]) -> None:
        """Note how wide a batch of this rank is, where it is one of sequences."""
        ids = batch.get("input_ids")
        if ids is not None:
            self._widest_tokens = max(self._widest_tokens, ids.shape[1])

    def now(self) -> dict[str, int]:
        """Return what is cheap to ask in every step.

        `peak_bytes` is the peak of training so far: allocated on a GPU, growth of the process on the CPU.
        """
        if self._device.type != "cuda":
            growth = _rss_bytes() - self._baseline_rss_bytes
            return {"rss_bytes": growth, "peak_bytes": peak_rss_bytes() - self._baseline_rss_bytes}
        import torch

        # asked once, as each question makes all hundred figures, and the device waits meanwhile
        figures = torch.cuda.memory_stats(self._device)
        return {
            "allocated_bytes": figures["allocated_bytes.all.current"],
            "reserved_bytes": figures["reserved_bytes.all.current"],
            "peak_bytes": max(self._peak_bytes, figures["allocated_bytes.all.peak"]),
        }

    def summary(self) -> dict[str, Any]:
        """Return all phases and the largest of each figure."""
        names = {name for one in self.phases for name in one if name != "phase"}
        peaks = {name: max(one.get(name, 0) for one in self.phases) for name in sorted(names)}
        return {
            "baseline_rss_bytes": self._baseline_rss_bytes,
            "host": socket.gethostname(),
            "widest_tokens": self._widest_tokens,
            "phases": self.phases,
            "largest": peaks,
        }


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


def cuda_figures(device: Any) -> dict[str, int]:
    """Return what the allocator holds and held at most since the last call, and what the process takes."""
    import torch

    figures = {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "device_used_bytes": device_used_bytes(device),
    }
    torch.cuda.reset_peak_memory_stats(device)
    return figures


def device_used_bytes(device: Any) -> int:
    """Return what this process takes of a GPU: context, libraries and all that is reserved.

    From NVML where pynvml is there and lists the process; a container may hide it. Else all that is taken of
    the device, as CUDA says, which counts other processes too.
    """
    own = nvml_process_bytes(device)
    if own is not None:
        return own
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def nvml_process_bytes(device: Any) -> int | None:
    """Return what NVML says that this process takes of a GPU; None where it does not tell."""
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except Exception:  # whatever is missing here, the figure has another source
        return None
    used = [one.usedGpuMemory for one in running if one.pid == os.getpid()]
    return used[0] if used else None


def _pss_bytes() -> int:
    """Return this process's share of main memory, shared pages divided among ranks; 0: unknown."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    sizes = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(sizes[0]) * KIB if sizes else 0


def _rss_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def peak_rss_bytes() -> int:
    """Return the most main memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
