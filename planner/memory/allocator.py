"""PyTorch's CUDA caching allocator, in sizes only.

Follows `c10/cuda/CUDACachingAllocator.cpp` (torch 2.11-2.13): requests round to 512 bytes; below 1 MiB
they come from 2 MiB segments, below 10 MiB from 20 MiB segments, larger ones get a segment of their own
rounded to 2 MiB; a free block is taken best fit and split when enough is left; each stream has its own
pools; when the limit is reached, wholly free segments are given back before the request fails.
With expandable segments a pool is one stretch of address space that grows and shrinks by pages.

Not modelled: `max_split_size_mb`, round-up divisions, delayed frees of `record_stream`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from planner.errors import OutOfMemory
from planner.units import MIB, round_up

BLOCK_ROUNDING = 512  # kMinBlockSize
SMALL_REQUEST = 1 * MIB  # kSmallSize
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MEDIUM_REQUEST = 10 * MIB  # kMinLargeAlloc
MEDIUM_SEGMENT = 20 * MIB  # kLargeBuffer
SEGMENT_ROUNDING = 2 * MIB  # kRoundLarge
PAGE_LARGE = 20 * MIB  # an expandable segment of the large pool grows by this
PAGE_SMALL = 2 * MIB

Key = tuple[int, int]  # (size, order of creation): best fit, oldest first


class Block:
    """A stretch of device memory; neighbours in the same segment are linked so that they can merge."""

    __slots__ = ("free", "key", "left", "pool", "right", "size")

    def __init__(self, size: int, pool: Pool, key: Key) -> None:
        self.size, self.pool, self.key = size, pool, key
        self.left: Block | None = None
        self.right: Block | None = None
        self.free = False


class Pool:
    """Free blocks of one kind (small or large) on one stream, ordered by size."""

    __slots__ = ("by_key", "end", "keys", "small")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.end: Block | None = None  # last block of an expandable segment
        self.keys: list[Key] = []
        self.by_key: dict[Key, Block] = {}

    def add(self, block: Block) -> None:
        """Take a free block in."""
        block.free = True
        insort(self.keys, block.key)
        self.by_key[block.key] = block

    def remove(self, block: Block) -> None:
        """Take a block out, for use or to merge it."""
        block.free = False
        del self.keys[bisect_left(self.keys, block.key)]
        del self.by_key[block.key]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes."""
        at = bisect_left(self.keys, (size, -1))
        return self.by_key[self.keys[at]] if at < len(self.keys) else None


def segment_bytes(size: int) -> int:
    """Bytes that the allocator asks the driver for to serve one request of `size`.

    >>> segment_bytes(512) == 2 * MIB and segment_bytes(3 * MIB) == 20 * MIB
    True
    """
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < MEDIUM_REQUEST:
        return MEDIUM_SEGMENT
    return round_up(size, SEGMENT_ROUNDING)


class CachingAllocator:
    """Serves requests as PyTorch would and keeps the same statistics.

    Args:
        limit_bytes: most the allocator may reserve (a smaller card, or a memory fraction); None: no limit.
        expandable_segments: as in `PYTORCH_CUDA_ALLOC_CONF`.
    """

    def __init__(self, *, limit_bytes: int | None = None, expandable_segments: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.expandable = expandable_segments
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._order = 0

    def malloc(self, nbytes: int, *, stream: int = 0) -> Block:
        """Serve one request.

        Raises:
            OutOfMemory: when the limit does not allow it, even after giving cached segments back.
        """
        size = max(round_up(nbytes, BLOCK_ROUNDING), BLOCK_ROUNDING)
        pool = self._pool(stream, size <= SMALL_REQUEST)
        block = pool.best_fit(size)
        if block is None:
            block = self._grow(pool, size) if self.expandable else self._new_segment(pool, size)
        else:
            pool.remove(block)
        self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Return a block to its pool, merging it with free neighbours."""
        self.allocated -= block.size
        pool = block.pool
        left, right = block.left, block.right
        if left is not None and left.free:
            pool.remove(left)
            block = self._merge(left, block)
        if right is not None and right.free:
            pool.remove(right)
            block = self._merge(block, right)
        block.key = self._key(block.size)
        pool.add(block)

    def empty_cache(self) -> None:
        """Give every wholly free segment back to the driver."""
        for pool in self._pools.values():
            self._give_back(pool)

    def _key(self, size: int) -> Key:
        self._order += 1
        return (size, self._order)

    def _pool(self, stream: int, small: bool) -> Pool:
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = Pool(small)
        return pool

    def _reserve(self, size: int) -> None:
        limit = self.limit_bytes
        if limit is not None and self.reserved + size > limit:
            self.empty_cache()
            if self.reserved + size > limit:
                raise OutOfMemory(size, self.reserved, limit)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _new_segment(self, pool: Pool, size: int) -> Block:
        total = segment_bytes(size)
        self._reserve(total)
        return Block(total, pool, self._key(total))

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        # A small rest stays inside the block and counts as allocated (should_split).
        least = BLOCK_ROUNDING if block.pool.small or self.expandable else SMALL_REQUEST + 1
        if rest < least:
            return
        tail = Block(rest, block.pool, self._key(rest))
        tail.left, tail.right = block, block.right
        if block.right is not None:
            block.right.left = tail
        block.right = tail
        block.size = size
        pool = block.pool
        if pool.end is block:
            pool.end = tail
        pool.add(tail)

    @staticmethod
    def _merge(left: Block, right: Block) -> Block:
        left.size += right.size
        left.right = right.right
        if right.right is not None:
            right.right.left = left
        if left.pool.end is right:
            left.pool.end = left
        return left

    def _give_back(self, pool: Pool) -> None:
        if self.expandable:
            self._unmap(pool)
            return
        for block in [b for b in pool.by_key.values() if b.left is None and b.right is None]:
            pool.remove(block)
            self.reserved -= block.size

    # Expandable segments: a pool is one stretch of addresses that grows at its end by whole pages. A free
    # block at the end is extended; pages of free blocks anywhere can be unmapped, which leaves a hole.

    def _grow(self, pool: Pool, size: int) -> Block:
        page = PAGE_SMALL if pool.small else PAGE_LARGE
        end = pool.end
        if end is not None and end.free:
            fresh = round_up(size - end.size, page)
            self._reserve(fresh)
            if end.free and pool.end is end:  # _reserve may have unmapped it
                pool.remove(end)
                end.size += fresh
                return end
            self.reserved -= fresh
        fresh = round_up(size, page)
        self._reserve(fresh)
        block = Block(fresh, pool, self._key(fresh))
        block.left = pool.end
        if pool.end is not None:
            pool.end.right = block
        pool.end = block
        return block

    def _unmap(self, pool: Pool) -> None:
        page = PAGE_SMALL if pool.small else PAGE_LARGE
        for block in [b for b in pool.by_key.values() if b.size >= page]:
            pool.remove(block)
            pages = block.size // page * page
            self.reserved -= pages
            block.size -= pages
            if block.right is not None:
                block.right.left = None
            block.right = None
            if block.size:
                block.key = self._key(block.size)
                pool.add(block)
            elif block.left is not None:
                block.left.right = None
            if pool.end is block and not block.size:
                pool.end = block.left


class PlainAllocator(CachingAllocator):
    """Memory of a CPU: every request is served exactly and given back at once."""

    def malloc(self, nbytes: int, *, stream: int = 0) -> Block:
        """Serve one request; `stream` means nothing here."""
        del stream
        block = Block(nbytes, _NOWHERE, (0, 0))
        self.allocated += nbytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.peak_reserved = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Give it back."""
        self.allocated -= block.size


_NOWHERE = Pool(small=False)


def replay(
    events: Iterable[tuple[int, int, int]], *, limit_bytes: int | None, expandable_segments: bool
) -> CachingAllocator:
    """Run a recorded stream of (buffer id, bytes or 0 for free, stream) through a fresh allocator.

    Raises:
        OutOfMemory: when a request cannot be served under the limit.
    """
    allocator = CachingAllocator(limit_bytes=limit_bytes, expandable_segments=expandable_segments)
    blocks: dict[int, Block] = {}
    for buffer_id, nbytes, stream in events:
        if nbytes:
            blocks[buffer_id] = allocator.malloc(nbytes, stream=stream)
        elif buffer_id:
            allocator.release(blocks.pop(buffer_id))
        else:
            allocator.empty_cache()
    return allocator
