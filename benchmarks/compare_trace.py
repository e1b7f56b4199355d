"""A real allocation trace beside the emulation: where the two streams of requests part, phase by phase.

    TRACE=1 python benchmarks/measure_training.py one CASE.json RESULT.out     on a GPU; writes RESULT.trace.gz
    python benchmarks/compare_trace.py CASE.json RESULT.trace.gz [--least MIB] [--show N]     anywhere

For each phase: reserved memory at its end, how many requests of at least MIB each side has, and the first places
where they differ (`+` taken, `-` given back, sizes in MiB). Small requests differ in order without consequence:
start with a large MIB and lower it, and leave out what is given back with --taken. With TRACE=stacks the real side
names the lines that asked.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import planner
from planner.memory.arena import Arena, Buffer
from planner.memory.replay import gpu_allocator
from planner.training import DISTINCT_MICRO_BATCHES, TrainingRun
from planner.training_case import TrainingCase
from planner.units import GIB, MIB, round_up

BLOCK = 512  # bytes; PyTorch rounds requests up to it
GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


@dataclass
class Phase:
    """Requests between two marks, as (sign and bytes, what or who asked), and reserved bytes at the end."""

    name: str
    requests: list[tuple[int, str]] = field(default_factory=list)
    reserved_bytes: int = 0

    def chosen(self, least_bytes: int, *, taken: bool) -> list[tuple[int, str]]:
        """The larger requests; with `taken` without what is given back."""
        return [r for r in self.requests if abs(r[0]) >= least_bytes and (r[0] > 0 or not taken)]


@dataclass(frozen=True)
class View:
    """Which requests to look at, and how many places of each phase to print."""

    least_bytes: int
    show: int = 5
    taken: bool = False


class Recorder(Arena):
    """An arena that keeps the requests of each phase."""

    def __init__(self, case: TrainingCase) -> None:
        super().__init__(gpu_allocator(expandable_segments=case.expandable_segments))
        self.now = Phase("")
        self.done: list[Phase] = []

    def take(self, buffer: Buffer, stream: int) -> None:
        """Serve a buffer and note it."""
        super().take(buffer, stream)
        self.now.requests.append((round_up(buffer.nbytes, BLOCK), buffer.what))

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back and note it."""
        super().give(buffer)
        self.now.requests.append((-round_up(buffer.nbytes, BLOCK), buffer.what))

    def end_phase(self, name: str) -> None:
        """Close a phase under the name that the measuring loop gives it, for which reducing is backward's."""
        super().end_phase(name)
        if name.startswith("backward"):
            return
        self.now.name, self.now.reserved_bytes = mark_of(name), self.allocator.reserved
        self.done.append(self.now)
        self.now = Phase("")


def mark_of(phase: str) -> str:
    """The measuring loop's name for a phase of the emulation.

    >>> mark_of("forward 1"), mark_of("engine start")
    ('fwd0', 'engine')
    """
    words = {"load": "model", "engine start": "engine"}
    if phase in words:
        return words[phase]
    kind, number = phase.split()
    short = {"forward": "fwd", "reduce": "bwd", "step": "step"}
    return f"{short[kind]}{int(number) - 1}"


def emulated(case: TrainingCase, *, steps: int) -> list[Phase]:
    """The phases as the planner plays them."""
    arena = Recorder(case)
    TrainingRun(case, arena).play(steps=steps)
    return arena.done


def traced(lines: Iterator[str]) -> list[Phase]:
    """The phases of a trace that `measuring/marks.py: Trace` wrote; a mark ends a phase."""
    phases: list[Phase] = []
    now, reserved = Phase(""), 0
    for line in lines:
        event = json.loads(line)
        if event[0] == "mark":
            now.name, now.reserved_bytes = event[1], reserved
            phases.append(now)
            now = Phase("")
            continue
        action, nbytes, _, _, who = event
        reserved += nbytes if action in GROWS else -nbytes if action in SHRINKS else 0
        if action in ("alloc", "free_requested"):
            sign = 1 if action == "alloc" else -1
            now.requests.append((sign * round_up(nbytes, BLOCK), " < ".join(who[:2])))
    return [phase for phase in phases if phase.name != "start"]


def played_only(phases: list[Phase]) -> list[Phase]:
    """Without the micro-batches of a step that the emulation leaves out: all between the first and the last."""
    kept: list[Phase] = []
    for number, phase in enumerate(phases):
        step = "".join(filter(str.isdigit, phase.name))
        same = [i for i, other in enumerate(phases) if other.name == phase.name]
        last = len(same) - 1
        position = same.index(number)
        if not step or position < DISTINCT_MICRO_BATCHES - 1 or position == last:
            kept.append(phase)
    return kept


def differences(real: Phase, ours: Phase, view: View) -> list[str]:
    """The first places where the streams differ, one line a request and side."""
    left, right = (phase.chosen(view.least_bytes, taken=view.taken) for phase in (real, ours))
    show = view.show
    matcher = SequenceMatcher(None, [n for n, _ in left], [n for n, _ in right], autojunk=False)
    lines: list[str] = []
    places = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    for _, a, b, c, d in places[:show]:
        lines.append(f"  request {a + 1}")
        lines += [f"    real      {_written(request)}" for request in left[a:b][:show]]
        lines += [f"    emulation {_written(request)}" for request in right[c:d][:show]]
    if len(places) > show:
        lines.append(f"  and {len(places) - show} more places")
    return lines


def _written(request: tuple[int, str]) -> str:
    nbytes, what = request
    return f"{'+' if nbytes > 0 else '-'}{abs(nbytes) / MIB:10.3f}  {what}".rstrip()


def report(real: list[Phase], ours: list[Phase], view: View) -> list[str]:
    """All phases, in the order of the trace."""
    lines: list[str] = []
    for left, right in zip(played_only(real), ours, strict=False):
        if left.name != right.name:
            return [*lines, f"the trace has {left.name} where the emulation has {right.name}: stopped"]
        reserved = [phase.reserved_bytes / GIB for phase in (left, right)]
        counts = [len(phase.chosen(view.least_bytes, taken=view.taken)) for phase in (left, right)]
        lines.append(
            f"{left.name:8} reserved {reserved[0]:8.3f} real {reserved[1]:8.3f} emulated "
            f"({100 * (reserved[1] / reserved[0] - 1) if reserved[0] else 0:+.1f} %), "
            f"requests {counts[0]} real {counts[1]} emulated"
        )
        lines += differences(left, right, view)
    return lines


def read_case(path: Path) -> TrainingCase:
    """A case as it was measured; a row of planner/data/measured will do. A limit does not change requests."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    content = content.get("case", content)
    return planner.parse_training_case({k: v for k, v in content.items() if k != "memory_limit_gib"})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", type=Path, help="CASE.json")
    parser.add_argument("trace", type=Path, help="what TRACE=1 wrote beside the result")
    parser.add_argument("--least", type=float, default=16, metavar="MIB", help="leave smaller requests out")
    parser.add_argument("--show", type=int, default=5, metavar="N", help="places a phase")
    parser.add_argument("--taken", action="store_true", help="leave out what is given back")
    args = parser.parse_args()
    with gzip.open(args.trace, "rt", encoding="utf-8") as file:
        real = traced(iter(file))
    steps = sum(phase.name.startswith("step") for phase in real)
    ours = emulated(read_case(args.case), steps=max(steps, 1))
    view = View(int(args.least * MIB), args.show, args.taken)
    print("\n".join(report(real, ours, view)))


if __name__ == "__main__":
    main()
