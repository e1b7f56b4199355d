"""What CUDA kernels take for themselves, against what an H200 allocated (benchmarks/results/README.md)."""

from __future__ import annotations

import pytest

from planner.memory.allocator import PlainAllocator
from planner.memory.arena import Arena
from planner.tables import gpu
from planner.tape.kernels import SCRATCH, Workspaces, column_sum_bytes

MIB = 1 << 20
TOKENS = 2048


@pytest.mark.parametrize(("columns", "mib"), [(1536, 24), (1792, 28), (2048, 32), (6144, 96)])
def test_a_sum_over_tokens_takes_what_was_measured(columns, mib):
    assert column_sum_bytes(TOKENS, columns, gpu("h200")) == mib * MIB


@pytest.mark.parametrize("rows", [1, 63, 512, 1020])
def test_short_sums_are_not_split(rows):
    assert column_sum_bytes(rows, 2048, gpu("h200")) == 0


def test_a_wide_sum_fills_the_card_without_being_split_as_far():
    narrow, wide = (column_sum_bytes(1 << 16, n, gpu("h200")) / n for n in (1024, 65536))
    assert 0 < wide < narrow


def test_a_smaller_card_splits_less():
    assert column_sum_bytes(8192, 4096, gpu("t4")) < column_sum_bytes(8192, 4096, gpu("h200"))


@pytest.mark.parametrize(("card", "took"), [(gpu("h200"), 24 * MIB), (None, 0)])
def test_scratch_is_held_for_a_moment_only(card, took):
    arena = Arena(PlainAllocator())
    Workspaces(arena, 0, card).sum_columns(TOKENS, 1536)
    assert (arena.peak_bytes, arena.allocator.allocated) == (took, 0)
    assert arena.peak_components().get(SCRATCH, 0) == took
