"""What the allocator says at each phase, and its own record of every request."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

GIB = 1024**3


class Marks:
    """Memory at the end of each phase and the most within it."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[str, float]] = {}
        self.times: list[tuple[str, float]] = []

    def __call__(self, name: str) -> None:
        import torch

        torch.cuda.synchronize()
        self.times.append((name, time.time() * 1e6))
        before = self.marks.get(name, {})  # an earlier micro-batch of the same step
        self.marks[name] = {
            "alloc": torch.cuda.memory_allocated() / GIB,
            "peak": max(before.get("peak", 0), torch.cuda.max_memory_allocated() / GIB),
            "reserved": torch.cuda.memory_reserved() / GIB,
            "peak_reserved": max(before.get("peak_reserved", 0), torch.cuda.max_memory_reserved() / GIB),
        }
        torch.cuda.reset_peak_memory_stats()

    def steps(self, key: str) -> float:
        """The most over the training steps."""
        return max(m[key] for name, m in self.marks.items() if name[:3] in ("fwd", "bwd", "ste"))


class Trace:
    """PyTorch's own record of every request, with the Python lines that made it."""

    def __init__(self, path: str) -> None:
        import torch

        self.path = Path(path)
        stacks = os.environ.get("TRACE") == "stacks"  # unsafe with recomputation in torch 2.11
        torch.cuda.memory._record_memory_history(
            context="all" if stacks else None, stacks="python", max_entries=4_000_000
        )

    def write(self, times: list[tuple[str, float]]) -> None:
        """One JSON line a request: action, bytes, stream, address, lines; marks in between."""
        import torch

        marks = list(times)
        with gzip.open(self.path, "wt") as file:
            for event in torch.cuda.memory._snapshot()["device_traces"][0]:
                while marks and event["time_us"] > marks[0][1]:
                    file.write(json.dumps(["mark", marks.pop(0)[0]]) + "\n")
                lines = [
                    f"{f['filename'][-40:]}:{f['line']}:{f['name']}" for f in event.get("frames", [])[:40]
                ]
                ours = [x for x in lines if "nn/modules/module.py" not in x and "??" not in x][:5]
                fields = [event[k] for k in ("action", "size", "stream", "addr")]
                file.write(json.dumps([*fields, ours]) + "\n")
