"""PyTorch's CUDA caching allocator, in sizes only.

Follows `c10/cuda/CUDACachingAllocator.cpp` (torch 2.11-2.13): requests round to 512 bytes; below 1 MiB
they come from 2 MiB segments, below 10 MiB from 20 MiB segments, larger ones get a segment of their own
rounded to 2 MiB; a free block is taken best fit and split when enough is left; each stream has its own
pools; when the limit is reached, wholly free segments are given back before the request fails.
`expandable.py` has the other way, where a pool is one stretch of addresses.

Not modelled: `max_split_size_mb`, round-up divisions, delayed frees of `record_stream`.
"""

from __future__ import annotations

from bisect import bisect_left

from planner.errors import OutOfMemory
from planner.units import MIB, round_up

BLOCK_ROUNDING = 512  # kMinBlockSize
SMALL_REQUEST = 1 * MIB  # kSmallSize
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MEDIUM_REQUEST = 10 * MIB  # kMinLargeAlloc
MEDIUM_SEGMENT = 20 * MIB  # kLargeBuffer
SEGMENT_ROUNDING = 2 * MIB  # kRoundLarge

LEAST_REST = SMALL_REQUEST + 1
"""A smaller rest of a large block stays inside it and counts as allocated (`should_split`)."""

SIZE_SHIFT = 64  # a free block's place in order: its size, then its address, in one number
LOWEST = -(1 << 60)  # below every address


class Block:
    """A stretch of device memory; neighbours in the same segment are linked so that they can merge."""

    __slots__ = ("address", "free", "left", "mapped", "pool", "right", "size")

    def __init__(self, size: int, pool: Pool, address: int) -> None:
        self.size, self.pool, self.address = size, pool, address
        self.left: Block | None = None
        self.right: Block | None = None
        self.free = False
        self.mapped = True
        """False for addresses without memory (`expandable.py`)."""


class Pool:
    """Free blocks of one kind (small or large) on one stream, ordered by size.

    Best fit, lowest address first (`BlockComparatorSize`). Plays spend most of their time here, so order and
    blocks are plain lists side by side.

    Args:
        small: whether it serves small requests.
        least_rest: a smaller rest of a block is not cut off.
    """

    __slots__ = ("blocks", "least_rest", "order", "small")

    def __init__(self, small: bool, least_rest: int) -> None:
        self.small, self.least_rest = small, least_rest
        self.order: list[int] = []
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        """Take a free block in."""
        block.free = True
        place = (block.size << SIZE_SHIFT) + block.address
        order = self.order
        at = bisect_left(order, place)
        order.insert(at, place)
        self.blocks.insert(at, block)

    def remove(self, block: Block) -> None:
        """Take a block out, for use or to merge it."""
        block.free = False
        at = bisect_left(self.order, (block.size << SIZE_SHIFT) + block.address)
        del self.order[at], self.blocks[at]

    def take(self, size: int) -> Block | None:
        """Take out the smallest free block of at least `size` bytes."""
        at = bisect_left(self.order, (size << SIZE_SHIFT) + LOWEST)
        if at == len(self.order):
            return None
        del self.order[at]
        block = self.blocks.pop(at)
        block.free = False
        return block


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


def merged(left: Block, right: Block) -> Block:
    """Join two neighbours; the left one is what is left."""
    left.size += right.size
    far = left.right = right.right
    if far is not None:
        far.left = left
    return left


class CachingAllocator:
    """Serves requests as PyTorch would and keeps the same statistics.

    Args:
        limit_bytes: most the allocator may reserve (a smaller card, or a memory fraction); None: no limit.
    """

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.allocated: int = 0
        self.reserved: int = 0
        self.peak_allocated: int = 0
        self.peak_reserved: int = 0
        self.least_limit: int = 0
        """Under any limit between this one and its own it would have gone the same way."""
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._next_address = 0

    def malloc(self, nbytes: int, *, stream: int = 0) -> Block:
        """Serve one request.

        Raises:
            OutOfMemory: when the limit does not allow it, even after giving cached segments back.
        """
        size = round_up(nbytes, BLOCK_ROUNDING) or BLOCK_ROUNDING
        small = size <= SMALL_REQUEST
        pool = self._pools.get((stream, small)) or self._pool(stream, small)
        block = pool.take(size) or self._grow(pool, size)
        if block.size - size >= pool.least_rest:
            pool.add(self._cut(block, size))
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Return a block to its pool, merging it with free neighbours."""
        self.allocated -= block.size
        self._settle(block.pool, block)

    def empty_cache(self) -> None:
        """Give every wholly free segment back to the driver."""
        for pool in self._pools.values():
            self._give_back(pool)

    def _address(self, size: int) -> int:
        """Where the driver puts a new segment: below all earlier ones, as seen in traces of CUDA 13."""
        self._next_address -= size
        return self._next_address

    def _pool(self, stream: int, small: bool) -> Pool:
        pool = self._pools[stream, small] = self._new_pool(small)
        return pool

    def _new_pool(self, small: bool) -> Pool:
        return Pool(small, BLOCK_ROUNDING if small else LEAST_REST)

    def _check_limit(self, size: int) -> None:
        limit = self.limit_bytes
        if limit is not None and self.reserved + size > limit:
            self.empty_cache()
            if self.reserved + size > limit:
                raise OutOfMemory(size, self.reserved, limit)
        self.least_limit = max(self.least_limit, self.reserved + size)

    def _reserve(self, size: int) -> None:
        self._check_limit(size)
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _grow(self, pool: Pool, size: int) -> Block:
        """A new segment."""
        total = segment_bytes(size)
        self._reserve(total)
        return Block(total, pool, self._address(total))

    @staticmethod
    def _cut(block: Block, size: int) -> Block:
        """Leave `size` bytes to a block and return the rest as its right neighbour."""
        tail = Block(block.size - size, block.pool, block.address + size)
        tail.left, tail.right = block, block.right
        if block.right is not None:
            block.right.left = tail
        block.right, block.size = tail, size
        return tail

    @staticmethod
    def _settle(pool: Pool, block: Block) -> Block:
        """Make a block free, merged with free neighbours."""
        left, right = block.left, block.right
        if left is not None and left.free:
            pool.remove(left)
            block = merged(left, block)
        if right is not None and right.free:
            pool.remove(right)
            block = merged(block, right)
        pool.add(block)
        return block

    def _give_back(self, pool: Pool) -> None:
        for block in [b for b in pool.blocks if b.left is None and b.right is None]:
            pool.remove(block)
            self.reserved -= block.size


class PlainAllocator(CachingAllocator):
    """Memory of a CPU: every request is served exactly and given back at once."""

    def malloc(self, nbytes: int, *, stream: int = 0) -> Block:
        """Serve one request; `stream` means nothing here."""
        del stream
        block = Block(nbytes, _NOWHERE, 0)
        self.allocated += nbytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.peak_reserved = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Give it back."""
        self.allocated -= block.size


_NOWHERE = Pool(small=False, least_rest=LEAST_REST)
