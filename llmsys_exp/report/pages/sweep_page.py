"""The page of a sweep: its points as charts and a table, the best, the skipped and the failed ones."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.report.console import duration
from llmsys_exp.report.pages.layout import own_version, render, shown
from llmsys_exp.report.pages.sweep_charts import forecast_charts, said, setting_charts
from llmsys_exp.report.plan_rows import short_names
from llmsys_exp.runs.manifest import utc_now
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import FAILED, LOST, PLANNED, RUNNING, SKIPPED, STATES
from llmsys_exp.sweeps.ledger.searching import SearchLedger
from llmsys_exp.sweeps.ledger.settle import AGAIN
from llmsys_exp.sweeps.results.best import MEASURES, Pick, best_points, is_number, measures_of, tells_apart
from llmsys_exp.sweeps.results.rows import Results, Row
from llmsys_exp.sweeps.results.table import CSV
from llmsys_exp.sweeps.results.warm import WARM_CSV

MOST_ROWS = 5_000
AT_ONCE = 200
"""Rows that are there before the scripts run; those behind them wait in a part that is not laid out."""
MOST_SKIPPED = 200
MOST_FAILED = 10
MOST_REASONS = 3
_TITLES = {
    "point": "point",
    "state": "state",
    "verdict": "verdict",
    "needed_gib": "forecast GiB",
    "limit_gib": "limit GiB",
    "peak_planned_gib": "planned peak GiB",
    "peak_measured_gib": "measured peak GiB",
    "peak_off": "off by",
    "host_measured_gib": "main memory GiB",
    **{one.column: one.name for one in MEASURES if one.column != "peak_measured_gib"},
    "heldout_loss_best": "lowest held-out loss",
    "cache_hit_rate": "cache hits",
    "seconds": "seconds",
}
_SHARES = ("peak_off", "cache_hit_rate")


@dataclass(frozen=True)
class Column:
    """One column of the table; `whole` is its whole name where the title is short."""

    name: str
    title: str
    whole: str
    number: bool
    wide: bool
    text: Callable[[Row], str]


def sweep_page(paths: SweepPaths, sweep: Sweep, results: Results) -> str:
    """Return the page.

    Raises:
        UserError: when the package that makes pages is missing.
    """
    measures = measures_of(results.rows, sweep.search)
    told = [one for one in measures if tells_apart(results.rows, one)] or measures
    settings, forecasts = setting_charts(results, told, sampled=_sampled(sweep)), forecast_charts(results)
    found = Counter(row["state"] for row in results.rows)
    skipped = [row for row in results.rows if row["state"] == SKIPPED]
    return render(
        "sweep.html",
        charts={**settings, **forecasts},
        said={row["point"]: said(row, results.settings) for row in results.rows},
        sweep=sweep,
        rows=results.rows,
        table=results.rows[:MOST_ROWS],
        at_once=AT_ONCE,
        columns=_columns(results),
        counts={state: found[state] for state in STATES if found[state]},
        facts=_facts(paths, sweep, results),
        ways_on=_ways_on(paths, results.rows),
        picks=[_pick(one, sweep, results) for one in best_points(results.rows, measures)],
        setting_names=list(settings),
        forecast_names=list(forecasts),
        skipped=[_skipped(row, sweep, results) for row in skipped[:MOST_SKIPPED]],
        skipped_count=len(skipped),
        failed=_failed(paths, results),
        most_failed=MOST_FAILED,
        csv=_csv(paths),
        version=own_version(),
        written=utc_now(),
    )


def _sampled(sweep: Sweep) -> dict[str, bool]:
    """Return the settings that a search takes from a range, and whether by their logarithm."""
    space = (sweep.search or {}).get("search", {})
    return {key: bool(given.get("log")) for key, given in space.items() if isinstance(given, Mapping)}


def _columns(results: Results) -> list[Column]:
    """Return the columns that hold anything, settings first, and at the end why a point did not run."""
    rows = results.rows
    names = [name for name in _TITLES if any(row[name] is not None for row in rows)]
    order = [*names[:2], *results.settings, *names[2:]]
    titles = {**short_names(results.settings), **_TITLES}
    columns = [
        Column(name, titles[name], name, _is_numeric(rows, name), False, _text_of(name)) for name in order
    ]
    if any(row["reason"] or row["error"] for row in rows):
        columns.append(Column("why", "why it did not run", "", False, True, _why))
    return columns


def _why(row: Row) -> str:
    return str(row["reason"] or row["error"] or "")


def _is_numeric(rows: Sequence[Row], name: str) -> bool:
    return all(is_number(row[name]) for row in rows if row[name] is not None)


def _text_of(name: str) -> Callable[[Row], str]:
    if name in _SHARES:
        return lambda row: f"{100 * row[name]:+.1f} %" if is_number(row[name]) else ""
    return lambda row: shown(row[name])


def _facts(paths: SweepPaths, sweep: Sweep, results: Results) -> list[tuple[str, str]]:
    busy = sum(row["seconds"] or 0 for row in results.rows)
    search = sweep.search or {}
    return [
        ("folder", str(paths.folder)),
        ("each point", f"llmsys {sweep.verb} {shlex.join(sweep.base)}"),
        ("varied", ", ".join(results.settings)),
        ("search", f"{search.get('trials')} trials for {_objective(search)}" if search else ""),
        ("turned down", _turned_down(paths, sweep)),
        ("time of all points", duration(busy) if busy else ""),
        ("table", f"{_csv(paths)} and {Path(_csv(paths)).stem}.parquet in the folder"),
    ]


def _turned_down(paths: SweepPaths, sweep: Sweep) -> str:
    """Say what a search has suggested that does not fit."""
    if sweep.search is None:
        return ""
    ledger = sweep.ledger(paths)
    assert isinstance(ledger, SearchLedger)
    ledger.states()
    reasons = Counter(one.what for one in ledger.suggestions if one.number is None)
    told = [f"{count} times {what}" for what, count in reasons.most_common(MOST_REASONS)]
    more = [f"and {len(reasons) - MOST_REASONS} more reasons"] if len(reasons) > MOST_REASONS else []
    return f"{sum(reasons.values())} suggestions: {'; '.join([*told, *more])}" if told else ""


def _csv(paths: SweepPaths) -> str:
    return CSV if paths.sweep.is_file() else WARM_CSV


def _objective(search: Mapping[str, Any]) -> str:
    given = search.get("objective")
    listed = given if isinstance(given, list) else [given]
    return " and ".join(str(one.get("metric") if isinstance(one, Mapping) else one) for one in listed)


def _ways_on(paths: SweepPaths, rows: Sequence[Row]) -> list[str]:
    if not paths.sweep.is_file():
        return []
    left = any(row["state"] in (PLANNED, LOST) or row["kind"] in AGAIN for row in rows)
    runs = any(row["state"] == RUNNING for row in rows)
    folder = shlex.quote(str(paths.folder))
    if runs:
        return [f"llmsys sweep wait {folder}", f"llmsys sweep report {folder}"]
    return [f"llmsys sweep resume {folder}"] if left else []


def _pick(pick: Pick, sweep: Sweep, results: Results) -> dict[str, Any]:
    row = pick.row
    again = shlex.join(["llmsys", sweep.verb, *results.overrides[row["point"]]])
    folder = [shlex.quote(row["folder"])] if row["folder"] else []
    return {
        "what": ", ".join(
            one.best if place == 0 else one.best.lower() for place, one in enumerate(pick.measures)
        ),
        "figures": [(one.name, row[one.column]) for one in pick.measures],
        "point": row["point"],
        "settings": [(key, shown(row[key])) for key in results.settings],
        "commands": [again, *(f"llmsys report {one}" for one in folder)],
    }


def _skipped(row: Row, sweep: Sweep, results: Results) -> dict[str, Any]:
    # the words of a change end with what the point would then need, in brackets
    change = (row["fix"] or "").partition(" (")[0].split()
    command = shlex.join(["llmsys", sweep.verb, *results.overrides[row["point"]], *change])
    return {
        "point": row["point"],
        "settings": _settings(row, results),
        "reason": row["reason"],
        "fix": row["fix"],
        "command": command if change else "",
    }


def _failed(paths: SweepPaths, results: Results) -> list[dict[str, Any]]:
    """Return failed points by kind, most frequent first; `resume` takes up lost ones, `retry` the others."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in results.rows:
        if row["state"] in (FAILED, LOST):
            told = {
                "point": row["point"],
                "settings": _settings(row, results),
                "error": row["error"] or "its process is gone without a word",
                "log": str(paths.point_log(row["point"]) if paths.sweep.is_file() else row["folder"] or ""),
            }
            kinds.setdefault(row["kind"] or row["state"], []).append(told)
    folder = shlex.quote(str(paths.folder))
    again = f"llmsys sweep retry {folder}" if paths.sweep.is_file() else ""
    return [
        {
            "name": kind,
            "points": points,
            "retry": again and f"{again} --only {shlex.quote(kind)} --set KEY=VALUE",
        }
        for kind, points in sorted(kinds.items(), key=lambda one: -len(one[1]))
    ]


def _settings(row: Row, results: Results) -> str:
    return ", ".join(f"{key}={shown(row[key])}" for key in results.settings if row[key] is not None)
