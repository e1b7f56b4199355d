"""Where a sweep stands: counts, points as rows, and what that comes to as an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from shlex import quote
from typing import Any

from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_JOB_FAILED, EXIT_OK, EXIT_STOPPED
from llmsys_exp.report.console import Console, duration
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import (
    DONE,
    FAILED,
    LOST,
    PLANNED,
    PRUNED,
    RUNNING,
    SKIPPED,
    STATES,
    PointState,
)
from llmsys_exp.sweeps.ledger.settle import AGAIN, is_gone
from llmsys_exp.sweeps.points.point import shared_overrides
from llmsys_exp.sweeps.running.left import time_left, told

MOST_ROWS = 40
MOST_SKIPPED = 8
States = Mapping[int, PointState]


def state_of_point(now: PointState) -> str:
    """Return the state of a point; one whose process is gone is lost, whether that is written yet or not."""
    return LOST if is_gone(now) else now.state


def counts(states: States) -> dict[str, int]:
    """Return how many points are in each state, those that occur."""
    found = Counter(map(state_of_point, states.values()))
    return {state: found[state] for state in STATES if found[state]}


def sweep_to_dict(paths: SweepPaths, sweep: Sweep, states: States, *, runner: int | None) -> dict[str, Any]:
    """Return all of it as plain values; `left` is None where nothing of it runs."""
    is_busy = runner is not None or any(state_of_point(now) == RUNNING for now in states.values())
    left = time_left(sweep, states) if is_busy else None
    return {
        "folder": str(paths.folder),
        "id": sweep.id,
        "name": sweep.name,
        "verb": sweep.verb,
        "runner": runner,
        "counts": counts(states),
        "summary": told(sweep, states, left),
        "left": None if left is None else asdict(left),
        "points": [_row(sweep, now) for now in states.values()],
    }


def show_sweep(
    console: Console,
    paths: SweepPaths,
    sweep: Sweep,
    states: States,
    *,
    by: Sequence[str],
    everything: bool,
    left: bool = False,
) -> None:
    """Write counts, and a table of the points that need a look.

    Args:
        console: where to.
        paths: files of the sweep.
        sweep: the sweep.
        states: of its points.
        by: who runs it now, a line each.
        everything: show the points that need no look, too.
        left: a search is to add further points.
    """
    said = told(sweep, states, time_left(sweep, states) if by else None)
    console.line(f"{sweep.name}: {said}")
    console.line(f"  {paths.folder}")
    found = set(counts(states))
    alone = ["what runs goes on by itself; nobody starts further points"] if RUNNING in found else []
    nobody = ["nobody runs it now"] if left or {PLANNED, LOST} & found else []
    for line in by or alone or nobody:
        console.line(f"  {line}")
    quiet = (PLANNED, DONE)
    chosen = [now for now in states.values() if everything or state_of_point(now) not in quiet]
    if chosen:
        console.line()
        shown = chosen if everything else _worst(chosen)
        header = ("point", "state", "started", "time", "settings and what happened")
        shared = shared_overrides(sweep.points)
        console.table([_cells(sweep, now, shared) for now in shown], header=header, right=(0, 2, 3))
        if len(shown) < len(chosen):
            console.line(f"  ... and {len(chosen) - len(shown)} more: --all shows every point")
    if not by:
        _show_way_on(console, paths, states, left=left)


def exit_code(states: States, *, left: bool = False) -> int:
    """Return what a sweep comes to: the worst of its points, or `does not fit` when all were skipped.

    Args:
        states: of its points.
        left: whether a search is to add further ones.
    """
    found = counts(states)
    failed = [now for now in states.values() if now.state == FAILED]
    if any(now.fields.get("kind") not in AGAIN for now in failed):
        return EXIT_JOB_FAILED
    if left or failed or set(found) - {DONE, PRUNED, SKIPPED}:
        return EXIT_STOPPED
    return EXIT_OK if {DONE, PRUNED} & set(found) else EXIT_DOES_NOT_FIT


def _show_way_on(console: Console, paths: SweepPaths, states: States, *, left: bool) -> None:
    kinds = {str(now.fields.get("kind")) for now in states.values() if now.state == FAILED}
    failed = sorted(kinds - AGAIN)
    left = left or bool(kinds & AGAIN or {PLANNED, LOST} & set(counts(states)))
    folder = quote(str(paths.folder))
    if left or failed:
        console.line()
    if left:
        console.line(f"Go on:        llmsys sweep resume {folder}")
    if failed:
        console.line(f"Try again:    llmsys sweep retry {folder} --only {','.join(failed)} --set KEY=VALUE")


def _row(sweep: Sweep, now: PointState) -> dict[str, Any]:
    point = sweep.points[now.number - 1]
    return {
        "point": now.number,
        "key": point.key,
        "overrides": [*point.overrides, *now.overrides],
        "attempts": now.attempt,
        **now.fields,
        "state": state_of_point(now),
    }


def _worst(chosen: Sequence[PointState]) -> list[PointState]:
    """Return the points that a short table shows: all kinds of trouble, and a few of what was skipped."""
    skipped = [now for now in chosen if now.state == SKIPPED]
    others = [now for now in chosen if now.state != SKIPPED]
    return [*others[:MOST_ROWS], *skipped[:MOST_SKIPPED]]


def _cells(sweep: Sweep, now: PointState, shared: Collection[str]) -> tuple[str, ...]:
    fields = now.fields
    overrides = " ".join(filter(None, (sweep.points[now.number - 1].own(shared), *now.overrides)))
    kind = f" ({fields['kind']})" if "kind" in fields else ""
    what = f"  {fields['what']}" if fields.get("what") else ""
    if fields.get("values"):
        what = "  = " + ", ".join(
            f"{one:.6g}" if isinstance(one, float) else str(one) for one in fields["values"]
        )
    seconds = fields.get("seconds")
    return (
        str(now.number),
        f"{state_of_point(now)}{kind}",
        str(now.attempt or "-"),
        "-" if seconds is None else duration(seconds),
        f"{overrides}{what}",
    )
