"""The emulated caching allocator, against PyTorch's rules."""

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


sizes = st.lists(st.integers(1, 300 * MIB), min_size=1, max_size=60)


@given(sizes=sizes, drop=st.randoms(use_true_random=False), expandable=st.booleans())
def test_reserved_never_falls_below_allocated_and_all_returns(sizes, drop, expandable):
    allocator = gpu_allocator(expandable_segments=expandable)
    held = []
    for size in sizes:
        held.append(allocator.malloc(size))
        if held and drop.random() < 0.5:
            allocator.release(held.pop(drop.randrange(len(held))))
        assert allocator.reserved >= allocator.allocated >= sum(b.size for b in held) > -1
    while held:
        allocator.release(held.pop())
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved < 20 * MIB + 1  # expandable pools keep at most part of a page


@given(sizes=sizes)
def test_a_replay_under_the_reserved_peak_succeeds(sizes):
    events = [(i, size, 0) for i, size in enumerate(sizes, start=1)]
    events += [(i, 0, 0) for i in range(1, len(sizes) + 1)]
    free = replay(events, limit_bytes=None, expandable_segments=False)
    again = replay(events, limit_bytes=free.peak_reserved, expandable_segments=False)
    assert again.peak_allocated == free.peak_allocated
