"""The caching allocator with `expandable_segments:True`: a pool is one stretch of addresses, mapped by pages.

Follows `c10/cuda/CUDACachingAllocator.cpp` (torch 2.11-2.13): `get_free_block` (a block at the edge of
unmapped addresses counts as if it had grown already), `find_expandable_block`, `map_block`, `unmap_block`.
Under a limit a request is refused by its whole size, even where only a part of it had to be mapped.
"""

from __future__ import annotations

from bisect import bisect_left

from planner.memory.allocator import (
    BLOCK_ROUNDING,
    SIZE_SHIFT,
    Block,
    CachingAllocator,
    Pool,
    merged,
    segment_bytes,
)
from planner.units import MIB, round_up

PAGE_LARGE = 20 * MIB
PAGE_SMALL = 2 * MIB
ADDRESSES = 1 << 50  # more than any card has


class Stretch(Pool):
    """Addresses of one pool on one stream; `unmapped` holds the stretches without memory, lowest first."""

    __slots__ = ("page", "unmapped")

    def __init__(self, small: bool) -> None:
        super().__init__(small, BLOCK_ROUNDING)
        self.page = PAGE_SMALL if small else PAGE_LARGE
        self.unmapped = [Block(ADDRESSES, self, 0)]
        self.unmapped[0].mapped = False

    def take(self, size: int) -> Block | None:
        """As in any pool, but a block that could grow in place comes after those below its grown size."""
        order, blocks = self.order, self.blocks
        found = bisect_left(order, size << SIZE_SHIFT)
        if found == len(order):
            return None
        right = blocks[found].right
        if right is not None and not right.mapped:
            found = self._narrowest(found)
        del order[found]
        block = blocks.pop(found)
        block.free = False
        return block

    def _narrowest(self, first: int) -> int:
        """From a block at the edge of a gap on, the first whose grown size is below that of all before it."""
        found, grown = first, _grown_size(self.blocks[first])
        for place in range(first + 1, len(self.blocks)):
            wider = _grown_size(self.blocks[place])
            if wider >= grown:
                break
            found, grown = place, wider
        return found


def _grown_size(block: Block) -> int:
    """Size that a free block could grow to in place."""
    right = block.right
    return block.size + (right.size if right is not None and not right.mapped else 0)


class ExpandableAllocator(CachingAllocator):
    """Serves requests as PyTorch would with expandable segments."""

    def _new_pool(self, small: bool) -> Stretch:
        return Stretch(small)

    def _grow(self, pool: Pool, size: int) -> Block:
        """Map what is missing behind a free block, or a new one at the first gap that is wide enough."""
        assert isinstance(pool, Stretch)
        self._check_limit(segment_bytes(size))
        block = self._gap(pool, size)
        if not block.mapped:
            block = self._map(pool, block, min(block.size, size))
        while block.size < size:
            right = block.right
            assert right is not None
            block = self._map(pool, right, min(right.size, size - block.size))
        pool.remove(block)
        return block

    def _gap(self, pool: Stretch, size: int) -> Block:
        for gap in pool.unmapped:
            left = gap.left
            start = left if left is not None and left.free else gap
            room, block = 0, start
            while block is not None and room < size and (block.free or not block.mapped):
                room += block.size
                block = block.right
            if room >= size:
                return start
        raise AssertionError("the last gap has no end")

    def _map(self, pool: Stretch, gap: Block, size: int) -> Block:
        """Give the first `size` bytes of a gap memory, by whole pages; merge them with free neighbours."""
        at = pool.unmapped.index(gap)
        rest = self._cut_at(gap, gap.address + round_up(size, pool.page))
        pool.unmapped[at : at + 1] = [] if rest is None else [rest]
        gap.mapped = True
        if rest is not None:
            rest.mapped = False
        self.reserved += gap.size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self._settle(pool, gap)

    def _give_back(self, pool: Pool) -> None:
        """Unmap the whole pages inside each free block; what sticks out stays free."""
        assert isinstance(pool, Stretch)
        for block in list(pool.blocks):
            first = round_up(block.address, pool.page)
            end = (block.address + block.size) // pool.page * pool.page
            if end <= first:
                continue
            pool.remove(block)
            after, gap = self._cut_at(block, end), self._cut_at(block, first)
            if after is not None:
                pool.add(after)
            if gap is not None:
                pool.add(block)
            self._add_gap(pool, gap or block)

    def _cut_at(self, block: Block, address: int) -> Block | None:
        """Cut a block in two at an address and return the second part; None at its edges."""
        size = address - block.address
        return self._cut(block, size) if 0 < size < block.size else None

    def _add_gap(self, pool: Stretch, gap: Block) -> None:
        """Enter addresses that lost their memory, merged with unmapped neighbours."""
        self.reserved -= gap.size
        gap.mapped = False
        left, right = gap.left, gap.right
        if right is not None and not right.mapped:
            pool.unmapped.remove(right)
            gap = merged(gap, right)
        if left is not None and not left.mapped:
            pool.unmapped.remove(left)
            gap = merged(left, gap)
        addresses = [block.address for block in pool.unmapped]
        pool.unmapped.insert(bisect_left(addresses, gap.address), gap)
