"""What a simulation held and when: the largest allocations at the peak, and memory over the requests."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.memory.arena import Arena
from planner.simulate.recorder import Recorder

MOST_POINTS = 2_000


@dataclass(frozen=True)
class Allocation:
    """One storage that was there at the peak; alike ones of the same module's kind are counted together."""

    nbytes: int
    count: int
    component: str
    operator: str
    module: str

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * self.count

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "bytes": self.nbytes,
            "gib": round(self.nbytes / 2**30, 4),
            "count": self.count,
            "component": self.component,
            "operator": self.operator,
            "module": self.module,
        }


def largest_at_peak(recorder: Recorder, most: int = 10) -> list[Allocation]:
    """Return the largest allocations at the highest moment of a step, alike ones of all layers as one."""
    arena = recorder.arena
    found: dict[tuple[int, str, str, str], int] = {}
    for number, nbytes in arena.live_at_peak().items():
        operator, module = recorder.origin(number)
        key = (nbytes, arena.component(number), operator, _kind(module))
        found[key] = found.get(key, 0) + 1
    rows = [Allocation(nbytes, count, *names) for (nbytes, *names), count in found.items()]
    return sorted(rows, key=lambda row: -row.total_bytes)[:most]


def _kind(module: str) -> str:
    """The name of a module without the number of its layer.

    >>> _kind("model.layers.31.mlp.down_proj")
    'model.layers.*.mlp.down_proj'
    """
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def timeline(arena: Arena, most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """Return bytes by component over the requests: the highest point of each of `most` stretches."""
    live: dict[str, int] = {}
    sizes: dict[int, int] = {}
    stretch = max(1, len(arena.events) // most)
    points: list[dict[str, Any]] = []
    best: dict[str, int] = {}
    total = highest = 0
    for number, (buffer, nbytes, _) in enumerate(arena.events, start=1):
        name = arena.component(buffer)
        change = nbytes or -sizes.get(buffer, 0)
        if nbytes:
            sizes[buffer] = nbytes
        live[name] = live.get(name, 0) + change
        total += change
        if total >= highest:
            best, highest = dict(live), total
        if number % stretch == 0 or number == len(arena.events):
            points.append({"request": number, "bytes": best})
            best, highest = {}, 0
    return points


def snapshot_bytes(recorder: Recorder) -> bytes:
    """Return all requests as PyTorch's memory viewer reads them (pytorch.org/memory_viz).

    The format is that of `torch.cuda.memory._dump_snapshot`, which is a pickle; nothing here reads one.
    """
    trace = list(_trace(recorder))
    content = {"segments": [], "device_traces": [trace], "allocator_settings": {}}
    return pickle.dumps(content, protocol=2)


def _trace(recorder: Recorder) -> Iterator[dict[str, Any]]:
    """Each request as an event of the viewer; the number of a buffer stands for its address."""
    sizes: dict[int, int] = {}
    for time, (buffer, nbytes, stream) in enumerate(recorder.arena.events):
        if not buffer:
            continue
        sizes[buffer] = sizes.get(buffer, nbytes)
        event = {"addr": buffer << 20, "size": sizes[buffer], "stream": stream, "time_us": time}
        if nbytes:
            yield {"action": "alloc", "frames": _frames(recorder, buffer), **event}
        else:
            yield {"action": "free_requested", "frames": [], **event}
            yield {"action": "free_completed", "frames": [], **event}


def _frames(recorder: Recorder, buffer: int) -> list[dict[str, Any]]:
    operator, module = recorder.origin(buffer)
    names = [operator, module, recorder.arena.component(buffer)]
    return [{"name": name, "filename": "simulated", "line": 0} for name in names if name]


def phases_at(arena: Arena) -> list[tuple[str, int, int]]:
    """Return name, first and last request of each phase."""
    ends = [0, *(phase.end_event for phase in arena.phases)]
    return [
        (phase.name, first, last) for phase, (first, last) in zip(arena.phases, pairwise(ends), strict=True)
    ]
