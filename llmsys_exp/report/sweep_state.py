"""Where a sweep stands: counts, points as rows, and what that comes to as an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_JOB_FAILED, EXIT_OK, EXIT_STOPPED
from llmsys_exp.report.console import Console, duration
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, SKIPPED, STATES, PointState
from llmsys_exp.sweeps.ledger.settle import AGAIN, is_gone

MOST_ROWS = 40
States = Mapping[int, PointState]


def state_of_point(now: PointState) -> str:
    """Return the state of a point; one whose process is gone is lost, whether that is written yet or not."""
    return LOST if is_gone(now) else now.state


def counts(states: States) -> dict[str, int]:
    """Return how many points are in each state, those that occur."""
    found = Counter(map(state_of_point, states.values()))
    return {state: found[state] for state in STATES if found[state]}


def sweep_to_dict(paths: SweepPaths, sweep: Sweep, states: States, *, runner: int | None) -> dict[str, Any]:
    """Return all of it as plain values."""
    return {
        "folder": str(paths.folder),
        "id": sweep.id,
        "name": sweep.name,
        "verb": sweep.verb,
        "runner": runner,
        "counts": counts(states),
        "points": [_row(sweep, now) for now in states.values()],
    }


def show_sweep(
    console: Console, paths: SweepPaths, sweep: Sweep, states: States, *, runner: int | None, everything: bool
) -> None:
    """Write counts, and a table of the points that need a look."""
    said = ", ".join(f"{count} {state}" for state, count in counts(states).items())
    console.line(f"{sweep.name}: {len(states)} points, {said}")
    console.line(f"  {paths.folder}")
    console.line(f"  {f'process {runner} runs it' if runner else 'nobody runs it now'}")
    quiet = (PLANNED, DONE)
    chosen = [now for now in states.values() if everything or state_of_point(now) not in quiet]
    if chosen:
        console.line()
        shown = chosen if everything else chosen[:MOST_ROWS]
        header = ("point", "state", "started", "time", "settings and what happened")
        console.table([_cells(sweep, now) for now in shown], header=header, right=(0, 2, 3))
        if len(shown) < len(chosen):
            console.line(f"  ... and {len(chosen) - len(shown)} more: --all shows every point")
    _show_way_on(console, paths, states, runner)


def exit_code(states: States) -> int:
    """Return what a sweep comes to: the worst of its points, or `does not fit` when all were skipped."""
    found = counts(states)
    failed = [now for now in states.values() if now.state == FAILED]
    if any(now.fields.get("kind") not in AGAIN for now in failed):
        return EXIT_JOB_FAILED
    if failed or set(found) - {DONE, SKIPPED}:
        return EXIT_STOPPED
    return EXIT_OK if DONE in found else EXIT_DOES_NOT_FIT


def _show_way_on(console: Console, paths: SweepPaths, states: States, runner: int | None) -> None:
    if runner is not None:
        return
    failed = sorted({str(now.fields.get("kind")) for now in states.values() if now.state == FAILED} - AGAIN)
    left = exit_code(states) == EXIT_STOPPED or {PLANNED, LOST} & set(counts(states))
    if left or failed:
        console.line()
    if left:
        console.line(f"Go on:        llmsys sweep resume {paths.folder}")
    if failed:
        console.line(
            f"Try again:    llmsys sweep retry {paths.folder} --only {','.join(failed)} --set KEY=VALUE"
        )


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


def _cells(sweep: Sweep, now: PointState) -> tuple[str, ...]:
    fields = now.fields
    overrides = " ".join((*sweep.points[now.number - 1].overrides, *now.overrides))
    kind = f" ({fields['kind']})" if "kind" in fields else ""
    what = f"  {fields['what']}" if fields.get("what") else ""
    seconds = fields.get("seconds")
    return (
        str(now.number),
        f"{state_of_point(now)}{kind}",
        str(now.attempt or "-"),
        "-" if seconds is None else duration(seconds),
        f"{overrides}{what}",
    )
