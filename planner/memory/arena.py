"""Device memory as the emulated program sees it: buffers that die when nothing holds them.

A `Buffer` is freed when Python drops its last reference, as a torch tensor frees its storage. The code
that mirrors a model can therefore be written like the model: local names, saved tensors and `del` decide
what is alive. CPython's reference counting makes this exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.memory.allocator import Block, CachingAllocator

MAIN_STREAM = 0
GATHER_STREAM = 1
REDUCE_STREAM = 2


class Buffer:
    """One storage. `what` names the component it counts under."""

    __slots__ = ("__weakref__", "arena", "block", "id", "nbytes", "what")

    def __init__(self, arena: Arena, nbytes: int, what: str, stream: int) -> None:
        self.arena, self.nbytes, self.what = arena, nbytes, what
        self.id = 0
        self.block: Block | None = None
        if nbytes > 0:
            arena.take(self, stream)

    def __del__(self) -> None:
        if self.block is not None:
            self.arena.give(self)


@dataclass(frozen=True)
class PhasePeak:
    """Memory of one phase in bytes: at its end, and the most within it."""

    name: str
    end_bytes: int
    peak_bytes: int
    end_event: int = 0
    """How many requests there were at its end."""


class Arena:
    """Hands out buffers, keeps the stream of events and finds the make-up of the peak afterwards."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.events: list[tuple[int, int, int]] = []
        self.phases: list[PhasePeak] = []
        self.peak_bytes = 0
        self._names: list[str] = [""]  # component of each buffer id
        self._peak_event = 0
        self._phase_peak = 0

    def new(self, nbytes: int, what: str, *, stream: int = MAIN_STREAM) -> Buffer:
        """Allocate `nbytes` on `stream`, counted under component `what`."""
        return Buffer(self, nbytes, what, stream)

    def rename(self, buffer: Buffer, what: str) -> None:
        """Count a buffer under another component."""
        buffer.what = what
        self._names[buffer.id] = what

    def component(self, buffer_id: int) -> str:
        """What a buffer counts under, be it gone."""
        return self._names[buffer_id]

    def take(self, buffer: Buffer, stream: int) -> None:
        """Serve a new buffer. Called by `Buffer` itself."""
        buffer.id = len(self._names)
        self._names.append(buffer.what)
        buffer.block = self.allocator.malloc(buffer.nbytes, stream=stream)
        self.events.append((buffer.id, buffer.nbytes, stream))
        allocated = self.allocator.allocated
        if allocated > self._phase_peak:
            self._phase_peak = allocated
            if allocated > self.peak_bytes:
                self.peak_bytes = allocated
                self._peak_event = len(self.events)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back. Called by `Buffer` when nothing holds it any more."""
        block = buffer.block
        assert block is not None
        buffer.block = None
        self.allocator.release(block)
        self.events.append((buffer.id, 0, 0))

    def empty_cache(self) -> None:
        """Give cached segments back, as `torch.cuda.empty_cache()`."""
        self.allocator.empty_cache()
        self.events.append((0, 0, 0))

    def end_phase(self, name: str) -> None:
        """Close a phase: its peak is the most that was allocated since the last one closed."""
        self.phases.append(PhasePeak(name, self.allocator.allocated, self._phase_peak, len(self.events)))
        self._phase_peak = self.allocator.allocated

    def forget_peak(self) -> None:
        """Start counting the peak afresh, as `reset_peak_memory_stats()`."""
        self.peak_bytes = self._phase_peak = self.allocator.allocated
        self._peak_event = len(self.events)

    def live_at_peak(self) -> dict[int, int]:
        """Bytes of each buffer that was there at the peak, by its number."""
        live: dict[int, int] = {}
        for buffer_id, nbytes, _ in self.events[: self._peak_event]:
            if nbytes:
                live[buffer_id] = nbytes
            elif buffer_id:
                del live[buffer_id]
        return live

    def peak_components(self) -> dict[str, int]:
        """Bytes by component at the peak, largest first; they sum to `peak_bytes`."""
        parts: dict[str, int] = {}
        for buffer_id, nbytes in self.live_at_peak().items():
            name = self._names[buffer_id]
            parts[name] = parts.get(name, 0) + nbytes
        parts["allocator rounding"] = self.peak_bytes - sum(parts.values())
        return dict(sorted(parts.items(), key=lambda item: -item[1]))
