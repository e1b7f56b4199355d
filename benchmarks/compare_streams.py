"""The simulation beside the formula on one case: what each holds at its peak, and where their requests part.

    python benchmarks/compare_streams.py CASE [--least MIB] [--show N] [--taken]    CASE: id of a measured row, or a file

First the peaks of both: by component, and by the size of what is there, with the operator and the module of the
simulation. Then, as `compare_trace.py` does for a real trace, reserved memory at the end of each phase and the first
requests in which the two differ; the simulation is on the left ("real"), each request with what asked for it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import planner
from benchmarks.compare_trace import BLOCK, Phase, View, report
from benchmarks.measured import measured_rows
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.training import TrainingRun
from planner.units import GIB, MIB, round_up

if TYPE_CHECKING:
    from planner.simulate.run import SimulatedRun

LIMIT = "memory_limit_gib"
LEAST_LISTED_MIB = 0.5


def case_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a case without its limit, and what was measured of it, if anything.

    Raises:
        SystemExit: where there is neither a measured row nor a file of that name.
    """
    found = [row for row in measured_rows() if row["id"] == name]
    if not found and not Path(name).is_file():
        raise SystemExit(f"no measured row and no file is called {name}")
    row = found[0] if found else json.loads(Path(name).read_text(encoding="utf-8"))
    return {**row.get("case", row), LIMIT: None}, row.get("measured", {})


def phases_of(arena: Arena, told: Callable[[int], str], *, expandable: bool) -> list[Phase]:
    """Requests of each phase, with reserved memory at its end; what the formula calls reducing is backward's."""
    allocator = gpu_allocator(expandable_segments=expandable)
    blocks: dict[int, Any] = {}
    sizes: dict[int, int] = {}
    phases: list[Phase] = []
    first = 0
    for phase in arena.phases:
        if not phase.name.startswith("reduce"):
            phases.append(Phase(phase.name))
        now = phases[-1]
        for buffer, nbytes, stream in arena.events[first : phase.end_event]:
            if nbytes:
                blocks[buffer] = allocator.malloc(nbytes, stream=stream)
                sizes[buffer] = round_up(nbytes, BLOCK)
                now.requests.append((sizes[buffer], told(buffer)))
            elif buffer:
                allocator.release(blocks.pop(buffer))
                now.requests.append((-sizes[buffer], told(buffer)))
            else:
                allocator.empty_cache()
        first, now.reserved_bytes = phase.end_event, allocator.reserved
    return phases


def peaks(simulated: SimulatedRun, played: Arena) -> list[str]:
    """Both peaks by component, then by size: what only one of them holds, or holds more often."""
    arenas = (simulated.arena, played)
    lines = ["At the peak of the steps, MiB", f"  {'simulation':>12} {'formula':>12}"]
    parts = [arena.peak_components() for arena in arenas]
    for name in dict.fromkeys([*parts[0], *parts[1]]):
        lines.append(f"  {parts[0].get(name, 0) / MIB:12.3f} {parts[1].get(name, 0) / MIB:12.3f}  {name}")
    lines.append(f"  {arenas[0].peak_bytes / MIB:12.3f} {arenas[1].peak_bytes / MIB:12.3f}  in all")
    live = [arena.live_at_peak() for arena in arenas]
    counts = [Counter(one.values()) for one in live]
    for nbytes in sorted(counts[0] | counts[1], reverse=True):
        left, right = (count[nbytes] for count in counts)
        if left == right or nbytes < LEAST_LISTED_MIB * MIB:
            continue
        asked = Counter(
            " ".join(simulated.recorder.origin(buffer)) for buffer, n in live[0].items() if n == nbytes
        )
        named = Counter(played.component(buffer) for buffer, n in live[1].items() if n == nbytes)
        lines.append(f"  {nbytes / MIB:12.4f} x {left} simulated, x {right} by formula")
        lines += [f"      simulation {count} x {who}" for who, count in asked.most_common(4)]
        lines += [f"      formula    {count} x {who}" for who, count in named.most_common(4)]
    return lines


def summary(arenas: tuple[Arena, Arena], measured: dict[str, Any]) -> list[str]:
    """Allocated and reserved peaks of both, and of the measurement, in GiB."""
    lines = []
    for figure in ("allocated", "reserved"):
        sizes = [
            (arena.peak_bytes if figure == "allocated" else arena.allocator.peak_reserved) / GIB
            for arena in arenas
        ]
        known = measured.get(f"peak_{figure}_gib")
        beside = f"; measured {known:.4f}" if known else ""
        off = f" ({100 * (sizes[1] / sizes[0] - 1):+.3f} %)"
        lines.append(f"{figure} GiB: simulation {sizes[0]:.4f}, formula {sizes[1]:.4f}{off}{beside}")
    return lines


def both(content: dict[str, Any]) -> tuple[SimulatedRun, Arena]:
    """Simulate a case and play it by formula."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from planner.simulate.tier import simulation

    run = simulation(content).run
    return run, TrainingRun(planner.parse_training_case(content)).play()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", help="id of a measured row, or a file with a case")
    parser.add_argument("--least", type=float, default=1, metavar="MIB", help="leave smaller requests out")
    parser.add_argument("--show", type=int, default=5, metavar="N", help="places a phase")
    parser.add_argument("--taken", action="store_true", help="leave out what is given back")
    args = parser.parse_args()
    content, measured = case_of(args.case)
    run, played = both(content)
    origin, expandable = run.recorder.origin, run.case.expandable_segments
    print("\n".join([*summary((run.arena, played), measured), *peaks(run, played)]))
    real = phases_of(run.arena, lambda buffer: " ".join(origin(buffer)), expandable=expandable)
    ours = phases_of(played, played.component, expandable=expandable)
    print("\n".join(report(real, ours, View(int(args.least * MIB), args.show, args.taken))))


if __name__ == "__main__":
    main()
