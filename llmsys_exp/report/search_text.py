"""Where a search stands, in words: the best points with their commands, and what was turned down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmsys_exp.report.console import Console
from llmsys_exp.sweeps.folder import Sweep
from llmsys_exp.sweeps.search.best import Standing

MOST_BEST = 10
MOST_REASONS = 3


def show_search(console: Console, sweep: Sweep, found: Standing, importances: Mapping[str, float]) -> None:
    """Write the best points so far."""
    console.line()
    names = [f"{one.metric} ({one.direction})" for one in found.search.objectives]
    pace = f"{len(sweep.points)} of {found.search.trials} trials"
    console.line(f"Search by {' and '.join(names)}: {pace}{_turned_down(found.turned_down)}")
    if found.ended:
        console.line(f"  it ended early: {found.ended}")
    if not found.best:
        console.line("  no point has a value yet")
        return
    for number in found.best[:MOST_BEST]:
        told = ", ".join(
            f"{one.metric} {value:.6g}"
            for one, value in zip(found.search.objectives, found.values[number], strict=True)
        )
        console.line(f"Best: point {number}, {told}: {' '.join(sweep.points[number - 1].overrides)}")
        console.line(f"  {found.commands[number]}")
    if len(found.best) > MOST_BEST:
        console.line(f"  ... and {len(found.best) - MOST_BEST} more that none beats: --json names all")
    if importances:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in importances.items())
        console.line(f"What {found.search.objectives[0].metric} depends on: {shares}")


def _turned_down(reasons: Mapping[str, int]) -> str:
    if not reasons:
        return ""
    told: Sequence[str] = [f"{count} {what}" for what, count in list(reasons.items())[:MOST_REASONS]]
    more = f"; and {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    return f"; {sum(reasons.values())} suggestions do not fit: {'; '.join(told)}{more}"
