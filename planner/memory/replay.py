"""Run a recorded stream of requests through an allocator again: what would have happened under a limit?"""

from __future__ import annotations

from collections.abc import Iterable

from planner.memory.allocator import Block, CachingAllocator
from planner.memory.expandable import ExpandableAllocator


def gpu_allocator(*, limit_bytes: int | None = None, expandable_segments: bool = False) -> CachingAllocator:
    """The allocator that `PYTORCH_CUDA_ALLOC_CONF` asks for."""
    make = ExpandableAllocator if expandable_segments else CachingAllocator
    return make(limit_bytes=limit_bytes)


def replay(
    events: Iterable[tuple[int, int, int]], *, limit_bytes: int | None, expandable_segments: bool
) -> CachingAllocator:
    """Run a recorded stream of (buffer id, bytes or 0 for free, stream) through a fresh allocator.

    Raises:
        OutOfMemory: when a request cannot be served under the limit.
    """
    allocator = gpu_allocator(limit_bytes=limit_bytes, expandable_segments=expandable_segments)
    malloc, release = allocator.malloc, allocator.release
    blocks: dict[int, Block] = {}
    for buffer_id, nbytes, stream in events:
        if nbytes:
            blocks[buffer_id] = malloc(nbytes, stream=stream)
        elif buffer_id:
            release(blocks.pop(buffer_id))
        else:
            allocator.empty_cache()
    return allocator
