"""A calibration as text: each figure beside the planner's own, with runs and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmsys_exp.calibrate.entry import FEWEST, Entry, Figure
from llmsys_exp.report.console import Console
from planner.tables import constant, gpus

MEANINGS = {
    "context_gib": "context, GiB",
    "after_context_gib": "after the context, GiB",
    "nccl_gib": "NCCL, GiB",
}
SHOWN_LEFT_OUT = 12


def shipped(kind: str) -> dict[str, float]:
    """Return the planner's own constants for a kind of GPU; none for a processor."""
    if kind not in gpus():
        return {}
    return {"context_gib": gpus()[kind].context_gib} | {
        name: constant(name) for name in ("after_context_gib", "nccl_gib")
    }


def show_entry(console: Console, key: str, entry: Entry, *, note: str = "") -> None:
    """Write one device: constants, speed, what is outside the allocator in all, and from which runs."""
    console.title(f"{key} ({entry.kind or 'no row in the planner'}), {entry.date}, {_count(len(entry.runs))}")
    own = shipped(entry.kind)
    rows = [_row(MEANINGS[name], own.get(name), figure, digits=3) for name, figure in entry.constants.items()]
    rows += [_row(f"seconds of a step, {name}", 1.0, one, digits=2) for name, one in entry.speed.items()]
    header = ("", "planner", "measured", "runs", "from", "to", "")
    if rows:
        console.table(rows, header=header, right=(1, 2, 3, 4, 5))
    for name, figure in entry.outside_gib.items():
        most = f"slack: one run had {figure.slack:.3f} more than that" if figure.slack else "all runs alike"
        console.line(f"  Outside the allocator, {name}: {figure.value:.3f} GiB ({figure.runs}); {most}.")
    if note:
        console.line(f"  {note}")


def show_left_out(console: Console, left_out: Sequence[tuple[str, str]], what: str) -> None:
    """Write which runs do not count and why, runs of one reason together."""
    reasons: dict[str, list[str]] = {}
    for run, reason in left_out:
        reasons.setdefault(reason, []).append(run)
    if not reasons:
        return
    console.title(what)
    for reason, runs in list(reasons.items())[:SHOWN_LEFT_OUT]:
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        console.line(f"  {runs[0]}{more}: {reason}")
    if len(reasons) > SHOWN_LEFT_OUT:
        console.line(f"  {len(reasons) - SHOWN_LEFT_OUT} other reasons: --json lists all")


def to_dict(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return entries by device with the planner's own constants beside them."""
    return {key: {**entry.to_dict(), "planner": shipped(entry.kind)} for key, entry in entries.items()}


def _row(name: str, own: float | None, figure: Figure, *, digits: int) -> list[str]:
    numbers = [f"{one:.{digits}f}" for one in (figure.value, figure.low, figure.high)]
    planner = "-" if own is None else f"{own:.{digits}f}"
    use = "" if figure.is_used else f"not used: needs {FEWEST} runs"
    return [name, planner, numbers[0], str(figure.runs), numbers[1], numbers[2], use]


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
