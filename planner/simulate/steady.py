"""Optimizer steps that go as the last one went: their requests are repeated without the code behind them.

The second step meets optimizer state and ZeRO-3's prefetching; from then on the program's state repeats, and
so do its requests. Fragments of cached memory do not, so the allocator has to see another step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.memory.arena import Arena, Buffer

Held = Mapping[int, Callable[[], object]]


def repeat(
    arena: Arena,
    first: int,
    phases: Sequence[tuple[int, str]],
    held: Held,
    note: Callable[[int, int], None],
) -> list[Buffer] | None:
    """Take and give back once more what was since event `first`; what the last step left is given back now.

    Args:
        arena: where.
        first: number of the event that the step began with.
        phases: number of events at the end of each phase of the step, and the name of that phase in the next.
        held: for each buffer that is there what gives it back.
        note: told the number of each new buffer, and of the one that it repeats.

    Returns:
        What is still taken, for the caller to hold; None where the step did not end as it began, so that it
        cannot be repeated.
    """
    step = arena.events[first:]
    sizes = {number: nbytes for number, nbytes, _ in arena.events if nbytes}
    taken, given = _open_ends(step)
    # what was left by the step stands for what it found, size by size
    taken.sort(key=lambda one: sizes[one])
    given.sort(key=lambda one: sizes[one])
    same = [sizes[one] for one in taken] == [sizes[one] for one in given]
    if not same or not all(one in held for one in taken):
        return None
    twins = dict(zip(given, taken, strict=True))
    buffers: dict[int, Buffer] = {}
    ends = dict(phases)
    for number, (buffer_id, nbytes, stream) in enumerate(step, start=first + 1):
        if nbytes:
            twin = buffers[buffer_id] = arena.new(nbytes, arena.component(buffer_id), stream=stream)
            note(twin.id, buffer_id)
            del twin
        elif not buffer_id:
            arena.empty_cache()
        elif buffer_id in buffers:
            del buffers[buffer_id]
        else:
            held[twins[buffer_id]]()
        if number in ends:
            arena.end_phase(ends[number])
    return list(buffers.values())


def _open_ends(step: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Buffers taken in a step and still there, and those of before it that it gave back."""
    taken: dict[int, None] = {}
    given: list[int] = []
    for number, nbytes, _ in step:
        if nbytes:
            taken[number] = None
        elif number in taken:
            del taken[number]
        elif number:
            given.append(number)
    return list(taken), given
