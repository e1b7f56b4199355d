"""The emulated caching allocator, against PyTorch's rules."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import OutOfMemory
from planner.memory.allocator import CachingAllocator, segment_bytes
from planner.memory.replay import gpu_allocator, replay
from planner.units import MIB


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
    ids=["one byte", "small", "medium", "large", "rounded"],
)
def test_segments_follow_the_size_of_the_request(nbytes, segment):
    assert segment_bytes(nbytes) == segment


def test_a_rest_of_one_mib_stays_in_a_large_block():
    allocator = CachingAllocator()
    allocator.malloc(43 * MIB)
    assert (allocator.allocated, allocator.reserved) == (44 * MIB, 44 * MIB)


def test_a_freed_block_serves_the_next_request():
    allocator = CachingAllocator()
    allocator.release(allocator.malloc(64 * MIB))
    allocator.malloc(32 * MIB)
    assert allocator.reserved == 64 * MIB


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.release(allocator.malloc(64 * MIB, stream=0))
    allocator.malloc(64 * MIB, stream=1)
    assert allocator.reserved == 128 * MIB


def test_cached_segments_are_given_back_before_failing():
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.release(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert allocator.reserved == 80 * MIB


def test_fragments_are_not_given_back():
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    whole = allocator.malloc(80 * MIB)
    allocator.release(whole)
    keep = allocator.malloc(20 * MIB)
    with pytest.raises(OutOfMemory) as failure:
        allocator.malloc(70 * MIB)
    assert keep.size == 20 * MIB
    assert failure.value.requested_bytes == 70 * MIB


def test_expandable_segments_use_the_fragment():
    allocator = gpu_allocator(limit_bytes=100 * MIB, expandable_segments=True)
    allocator.release(allocator.malloc(80 * MIB))
    allocator.malloc(20 * MIB)
    allocator.malloc(70 * MIB)
    assert allocator.allocated == 90 * MIB
    assert allocator.reserved <= 100 * MIB


@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
def test_of_two_blocks_of_one_size_the_lower_address_is_taken(expandable):
    allocator = gpu_allocator(expandable_segments=expandable)
    blocks = [allocator.malloc(20 * MIB) for _ in range(4)]
    free = [blocks[0], blocks[2]]
    for block in free:
        allocator.release(block)
    assert allocator.malloc(20 * MIB).address == min(block.address for block in free)


def served(sizes_mib, limit_mib=None):
    """An allocator that has served these requests, and their blocks."""
    limit = None if limit_mib is None else limit_mib * MIB
    allocator = gpu_allocator(limit_bytes=limit, expandable_segments=True)
    return allocator, [allocator.malloc(size * MIB) for size in sizes_mib]


def test_an_expandable_block_grows_in_place():
    allocator, (block,) = served([20])
    allocator.release(block)
    grown = allocator.malloc(50 * MIB)
    assert (grown.address, allocator.reserved) == (0, 60 * MIB)  # two more pages of 20 MiB


def test_small_requests_are_mapped_by_pages_of_their_own():
    allocator, _ = served([1, 1, 1])
    assert allocator.reserved == 4 * MIB


def test_a_block_that_could_grow_is_spared():
    """The end of a pool counts as large as it could become, so a larger block in the middle fits better."""
    allocator, (middle, _, end) = served([40, 20, 20])
    allocator.release(middle)
    allocator.release(end)
    assert allocator.malloc(20 * MIB).address == middle.address
    assert allocator.malloc(30 * MIB).address == end.address


def test_a_gap_is_mapped_again_where_it_is_wide_enough():
    allocator, (first, _) = served([40, 20])
    allocator.release(first)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    assert allocator.malloc(60 * MIB).address == 60 * MIB  # behind all
    assert allocator.malloc(40 * MIB).address == 0
    assert allocator.reserved == allocator.allocated == 120 * MIB


def test_only_whole_pages_are_unmapped():
    allocator, (first, _) = served([30, 30])
    allocator.release(first)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    assert allocator.malloc(10 * MIB).address == 20 * MIB  # what sticks out of the page is still there
    assert allocator.reserved == 40 * MIB


def test_a_limit_is_checked_with_the_whole_request():
    """10 MiB are free at the end; one page more would do, but the request counts as a whole."""
    allocator, _ = served([50], limit_mib=85)
    with pytest.raises(OutOfMemory) as failure:
        allocator.malloc(28 * MIB)
    assert failure.value.reserved_bytes == 60 * MIB
    roomier, _ = served([50], limit_mib=88)
    roomier.malloc(28 * MIB)
    assert roomier.reserved == 80 * MIB


sizes = st.lists(st.integers(1, 300 * MIB), min_size=1, max_size=60)
streams = st.integers(0, 2)


def check(allocator, held):
    """What must hold at every moment, whatever was asked for."""
    assert allocator.reserved >= allocator.allocated == sum(block.size for block in held)
    by_pool = {}
    for block in held:
        by_pool.setdefault(id(block.pool), []).append((block.address, block.address + block.size))
    for spans in by_pool.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(
    requests=st.lists(st.tuples(st.integers(1, 300 * MIB), streams), min_size=1, max_size=60),
    drop=st.randoms(use_true_random=False),
    expandable=st.booleans(),
)
def test_blocks_never_overlap_and_all_memory_returns(requests, drop, expandable):
    allocator = gpu_allocator(expandable_segments=expandable)
    held = []
    for size, stream in requests:
        held.append(allocator.malloc(size, stream=stream))
        while held and drop.random() < 0.5:
            allocator.release(held.pop(drop.randrange(len(held))))
        if drop.random() < 0.1:
            allocator.empty_cache()
        check(allocator, held)
    while held:
        allocator.release(held.pop())
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)


@given(sizes=sizes, limit=st.integers(300, 900), expandable=st.booleans())
def test_a_limit_is_never_passed(sizes, limit, expandable):
    allocator = gpu_allocator(limit_bytes=limit * MIB, expandable_segments=expandable)
    held = []
    for size in sizes:
        try:
            held.append(allocator.malloc(size))
        except OutOfMemory:
            while held:
                allocator.release(held.pop())
        check(allocator, held)
    slack = 20 * MIB if expandable else 0  # a limit is checked by the request, memory is mapped by pages
    assert allocator.peak_reserved <= limit * MIB + slack


@given(sizes=sizes)
def test_a_replay_under_the_reserved_peak_succeeds(sizes):
    events = [(i, size, 0) for i, size in enumerate(sizes, start=1)]
    events += [(i, 0, 0) for i in range(1, len(sizes) + 1)]
    free = replay(events, limit_bytes=None, expandable_segments=False)
    again = replay(events, limit_bytes=free.peak_reserved, expandable_segments=False)
    assert again.peak_allocated == free.peak_allocated


def test_a_probe_that_holds_answers_for_all_limits_that_change_nothing():
    events = [(1, 40 * MIB, 0), (2, 60 * MIB, 0), (1, 0, 0), (3, 50 * MIB, 0), (2, 0, 0), (4, 30 * MIB, 0)]
    for expandable in (False, True):
        free = replay(events, limit_bytes=None, expandable_segments=expandable)
        tight = replay(events, limit_bytes=free.least_limit, expandable_segments=expandable)
        assert tight.peak_reserved == free.peak_reserved
        below = replay(events, limit_bytes=free.least_limit - 1, expandable_segments=expandable)
        assert below.peak_reserved < free.peak_reserved, "cached blocks had to go back"
