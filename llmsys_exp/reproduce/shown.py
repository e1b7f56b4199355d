"""What `llmsys reproduce` says: drifts before the start, metrics after it, the likely cause of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmsys_exp.report.console import Console
from llmsys_exp.reproduce.blame import Blamed
from llmsys_exp.reproduce.drift import KINDS, Drift, Effect
from llmsys_exp.reproduce.judge.row import Row
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.reproduce.tolerances import Relation

MOST_OF_A_KIND = 5
"""Drifts of one kind and effect that are shown; --json has all of them."""
ON_PURPOSE = "command line"
_KIND_WIDTH = max(map(len, KINDS))
_STYLES = {Effect.NUMBERS: "red", Effect.MEMORY: "yellow", Effect.SPEED: "dim", Effect.NOTHING: "dim"}


def show_drifts(console: Console, logged: Logged, drifts: Sequence[Drift]) -> None:
    """List what is not as it was, most serious first."""
    console.title(f"Run {logged.id}")
    when = logged.manifest.get("finished") or logged.manifest.get("started") or "at a time that is not told"
    console.line(f"  {'finished' if logged.ended else 'did not finish; started'} {when}")
    for note in logged.manifest.get("notes") or ():
        console.line(console.style(f"  note: {note}", "yellow"))
    if not drifts:
        console.line("  Nothing has changed since, as far as the record tells.")
        return
    console.title("Not as it was")
    list_drifts(console, drifts)


def list_drifts(console: Console, drifts: Sequence[Drift]) -> None:
    """List drifts under what they may change; many of one kind are cut short."""
    blocking = [one for one in drifts if one.blocks]
    _section(console, "  Nothing is run as long as", blocking, "red")
    for effect in sorted(Effect, reverse=True):
        some = [one for one in drifts if one.effect is effect and not one.blocks]
        title = f"  May change {effect.words}" if effect else "  Changes nothing"
        _section(console, title, some, _STYLES[effect])


def _section(console: Console, title: str, drifts: Sequence[Drift], style: str) -> None:
    if not drifts:
        return
    console.line(console.style(title, style))
    for kind in dict.fromkeys(one.kind for one in drifts):
        some = [one for one in drifts if one.kind == kind]
        lines = [one.what for one in some[:MOST_OF_A_KIND]]
        if len(some) > MOST_OF_A_KIND:
            lines.append(f"{len(some) - MOST_OF_A_KIND} more; --json lists them")
        advised = [one for one in some[:MOST_OF_A_KIND] if one.do and (one.matters or one.blocks)]
        # what the command line says is known to whoever wrote it
        advice = dict.fromkeys(one.do for one in advised if kind != ON_PURPOSE)
        lines += [f"-> {text}" for text in advice]
        blank = " " * (_KIND_WIDTH + 2)
        first = f"  {kind:<{_KIND_WIDTH}}"
        console.table([(blank if at else first, line) for at, line in enumerate(lines)])


def show_rows(console: Console, rows: Sequence[Row], relation: Relation) -> None:
    """Show each metric: logged, reproduced, difference, tolerance, verdict."""
    console.title(f"Logged and reproduced ({relation.value})")
    cells = [
        (
            row.name,
            _value(row.logged),
            _value(row.reproduced),
            row.difference,
            row.tolerance,
            {True: "pass", False: "FAIL", None: "-"}[row.passed],
        )
        for row in rows
    ]
    header = ("metric", "logged", "reproduced", "difference", "tolerance", "")
    console.table(cells, header=header, right=(1, 2, 3, 4))


def show_verdict(console: Console, rows: Sequence[Row], causes: Sequence[Blamed]) -> None:
    """Say whether the run was reproduced, and if not, why not."""
    failed = [row for row in rows if row.passed is False]
    judged = [row for row in rows if row.passed is not None]
    console.line()
    if not judged:
        console.line(console.style("Nothing to compare: the record holds no figures", "yellow"))
        return
    if not failed:
        console.line(console.style(f"Reproduced: {len(judged)} figures within bounds", "green"))
        return
    said = f"Reproduced, but different: {len(failed)} of {len(judged)} figures out of bounds"
    console.line(console.style(said, "red"))
    for row in failed:
        console.line(f"  {row.name}: tolerance {row.tolerance} ({row.reason})")
    _show_causes(console, causes)


def _show_causes(console: Console, causes: Sequence[Blamed]) -> None:
    if not causes:
        console.line("  No known drift explains this.  Two runs may differ by themselves: try both with")
        console.line("  training.deterministic=true, and look whether the log was changed.")
        return
    first, *others = causes
    console.line(f"  Likely cause: {first.drift.what}")
    console.line(f"    it may change: {', '.join(first.explains)}")
    if first.against:
        console.line(f"    against it: {', '.join(first.against)} came out as logged")
    if first.drift.do:
        console.line(f"    {first.drift.do}")
    if others:
        console.line(f"  Also possible: {'; '.join(one.drift.what for one in others[:3])}")


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.8g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
