"""`llmsys runs`: list run folders, filtered and sorted; follow, show and clear away single ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path

from llmsys_exp.browse.filters import Filters, read_condition, read_states, read_time
from llmsys_exp.browse.points import SweepPoint, find_points
from llmsys_exp.cli.options import split_options, take_repeated, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError, closest, unknown_name
from llmsys_exp.report.console import Console, clean, duration, gib
from llmsys_exp.runs.known_rows import KnownRows
from llmsys_exp.runs.listing import FoundRun, RunRow, find_runs

_HELP = """llmsys runs - list run folders; follow, show and clear away single ones

Usage:  llmsys runs [list] [FOLDER] [filters] [--sort KEY] [--reverse] [--limit N|all] [--json]
        llmsys runs tail [RUN] [--follow] [--lines N]        the log of the newest run, or of one
        llmsys runs show RUN                                 what one run is and what came out
        llmsys runs prune [FOLDER] ...                       what may go, and with --yes its removal

FOLDER              where run folders are, outputs by default, or the folder of one experiment
RUN                 a run folder, an id NAME/FOLDER, latest, or latest~1 for the one before it

Filters: all have to hold
  --state STATE     complete, running, stopped, failed, or a kind of failure (oom_gpu); several with commas
  --name GLOB       the experiment's name or the id, with * and ?
  --since 2d        begun since then: 30m, 12h, 2d, 3w or 2026-11-30
  --where KEY=VALUE a setting, group or figure: method.kind=lora, model=llama2_7b, 'loss<2.0'; may be repeated

  --sort KEY        time (default), name, state, loss, score, peak, seconds; --reverse turns it around
  --limit N         the newest N, or of another order the first N; 50 on the screen, all with --json
"""
FILTER_FLAGS = {"--state": "STATE", "--name": "GLOB", "--since": "2d"}
SHOWN = 50
_SORTS: dict[str, Callable[[RunRow], float | str | None]] = {
    "name": lambda row: row.id,
    "state": lambda row: row.state,
    "loss": lambda row: row.loss,
    "score": lambda row: row.score,
    "peak": lambda row: row.peak_bytes,
    "seconds": lambda row: row.seconds,
}
LIST = "list"
"""A word that may be left out."""
_COMMANDS = {"tail": "runs_tail", "show": "runs_show", "prune": "runs_prune"}


def run(arguments: Sequence[str]) -> int:
    """List runs, or do what the first word asks for."""
    options, rest = split_options(arguments)
    if options.help:
        sys.stdout.write(_help_of(rest))
        return EXIT_OK
    if rest and rest[0] in _COMMANDS:
        return import_module(f"llmsys_exp.cli.{_COMMANDS[rest[0]]}").run(rest[1:], options)
    filters, rest = take_filters(rest[1:] if rest[:1] == [LIST] else rest)
    values, rest = take_values(rest, {"--sort": "KEY", "--limit": "N"})
    is_reverse, rest = "--reverse" in rest, [text for text in rest if text != "--reverse"]
    outputs = take_folder(rest, [*FILTER_FLAGS, "--where", "--sort", "--reverse", "--limit"], "llmsys runs")
    sort = values.get("--sort", "time")
    if sort != "time" and sort not in _SORTS:
        raise unknown_name("order", sort, ["time", *_SORTS], where="--sort")
    limit = _limit(values.get("--limit", "all" if options.json else str(SHOWN)))
    points = find_points(outputs).by_run
    known = KnownRows(outputs)
    found = find_runs(outputs, known)
    chosen = filters.choose(found)
    rows = _sorted(chosen, sort, is_reverse=is_reverse, limit=limit)
    known.save(one.paths.manifest for one in found)
    if options.json:
        content = [{**row.to_dict(), "point": _point(points.get(row.id))} for row in rows]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        is_filtered = filters != Filters()
        _show(Console.on(sys.stdout), rows, points, more=len(chosen) - len(rows), what=(outputs, is_filtered))
    return EXIT_OK


def _help_of(rest: Sequence[str]) -> str:
    if rest[:1] == ["prune"]:
        from llmsys_exp.cli.runs_prune import HELP

        return HELP
    return _HELP


def take_filters(arguments: Sequence[str]) -> tuple[Filters, list[str]]:
    """Return the filters of a command line, and the arguments without them."""
    where, rest = take_repeated(arguments, "--where", "KEY=VALUE")
    values, rest = take_values(rest, FILTER_FLAGS)
    since = values.get("--since")
    return Filters(
        name=values.get("--name"),
        states=read_states(values.get("--state", "")),
        since=None if since is None else read_time(since, "--since", datetime.now()),
        where=tuple(map(read_condition, where)),
    ), rest


def take_folder(rest: Sequence[str], flags: Sequence[str], where: str) -> Path:
    """Return the folder that a command line names, `outputs` by default.

    Raises:
        UserError: for other arguments, or a folder that is not there.
    """
    unknown = [text for text in rest if text.startswith("-")]
    if unknown or len(rest) > 1:
        raise unknown_argument([*unknown, *rest[1:]][0], [*flags, "--json", "--help"], where=where)
    outputs = Path(rest[0].removeprefix("paths.outputs=") if rest else "outputs")
    if rest and not outputs.is_dir():
        near = "" if outputs.exists() else closest(rest[0], [LIST, *_COMMANDS])
        raise UserError(
            "This is no folder" if outputs.exists() else "There is no such folder",
            where=str(outputs),
            do=f"Did you mean llmsys runs {near}?" if near else "Name the folder that run folders are in",
        )
    return outputs


def _limit(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"--limit {text} is no number of runs", do="Write --limit 20, or --limit all")
    return int(text)


def _sorted(runs: Sequence[FoundRun], sort: str, *, is_reverse: bool, limit: int | None) -> list[RunRow]:
    if sort == "time":
        newest = runs if limit is None else runs[-limit:]  # those that are not shown are not read
        rows = [run.row for run in newest]
        return rows[::-1] if is_reverse else rows
    rows = [run.row for run in runs]
    known = [row for row in rows if _SORTS[sort](row) is not None]
    known.sort(key=_SORTS[sort], reverse=is_reverse)  # type: ignore[arg-type,return-value]
    rows = [*known, *(row for row in rows if _SORTS[sort](row) is None)]
    return rows[:limit]


def _show(
    console: Console,
    rows: Sequence[RunRow],
    points: dict[str, SweepPoint],
    *,
    more: int,
    what: tuple[Path, bool],
) -> None:
    outputs, is_filtered = what
    if not rows:
        said = f"No runs in {outputs}"
        start = "  Start one:  llmsys train experiment=quickstart"
        console.line(f"{said} of that kind" if is_filtered else f"{said}.{start}")
        return
    header = ("state", "steps", "loss", "score", "peak GiB", "time", "point", "folder")
    table = [_cells(row, points.get(row.id)) for row in rows]
    shown = [place for place in range(len(header)) if place != 6 or any(cells[6] != "-" for cells in table)]
    right = [shown.index(place) for place in (2, 3, 4, 5, 6) if place in shown]
    cut = [[cells[place] for place in shown] for cells in table]
    console.table(cut, header=[header[place] for place in shown], right=right)
    if more:
        console.line(console.style(f"  {more:,} more: --limit all", "dim"))


def _cells(row: RunRow, point: SweepPoint | None) -> tuple[str, ...]:
    return (
        row.state,
        clean(",".join(row.steps)) or "-",
        "-" if row.loss is None else f"{row.loss:.4f}",
        "-" if row.score is None else f"{row.score:.3f}",
        "-" if row.peak_bytes is None else gib(row.peak_bytes),
        "-" if row.seconds is None else duration(row.seconds),
        "-" if point is None else str(point.number),
        os.path.relpath(row.folder),
    )


def _point(point: SweepPoint | None) -> dict[str, str | int] | None:
    return None if point is None else {"sweep": point.sweep, "number": point.number}
