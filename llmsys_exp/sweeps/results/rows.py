"""The points of a sweep as rows: plain values, one row a point, all with the same keys.

Columns: `point`, `key`, `state`, `kind`, `attempt`; a column for each setting that varies; what the gate said
(`verdict`, `where`, `needed_gib`, `limit_gib`, `tier`); those of `figures.FIGURES`; `seconds`, `folder`,
`reason` (why it was skipped), `fix` (the cheapest change), `error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.report.sweep_state import state_of_point
from llmsys_exp.runs.resume_rules import flat
from llmsys_exp.runs.told import Told, read_told
from llmsys_exp.sweeps.folder import Sweep, SweepPaths
from llmsys_exp.sweeps.ledger.ledger import FAILED, LOST, SKIPPED, PointState
from llmsys_exp.sweeps.results.figures import FIGURES, clean, run_figures
from llmsys_exp.sweeps.results.settings import setting_values, varied

Row = Mapping[str, Any]
FIRST = ("point", "key", "state", "kind", "attempt")
GATE = ("verdict", "where", "needed_gib", "limit_gib", "tier")
LAST = ("seconds", "folder", "reason", "fix", "error")
OWN = frozenset((*FIRST, *GATE, *FIGURES, *LAST))


@dataclass(frozen=True)
class Results:
    """What came of a sweep.

    Attributes:
        settings: columns of settings that vary, in order.
        rows: one a point, in order of their numbers.
        overrides: number -> all overrides of a point's command line.
    """

    settings: tuple[str, ...]
    rows: tuple[Row, ...]
    overrides: Mapping[int, tuple[str, ...]]


def read_results_of(paths: SweepPaths, sweep: Sweep) -> Results:
    """Read the ledger and every run folder of a sweep, as far as they are there.

    Raises:
        UserError: for a ledger that is damaged.
    """
    states = sweep.ledger(paths).states()
    return results_of(sweep, states)


def results_of(sweep: Sweep, states: Mapping[int, PointState]) -> Results:
    """Return what came of each point that `states` tells of."""
    points = {point.number: point for point in sweep.points}
    overrides = {
        number: tuple(sweep.overrides(points[number], now.overrides)) for number, now in states.items()
    }
    asked = {number: setting_values(texts) for number, texts in overrides.items()}
    columns = {column_of(key): key for key in varied(asked)}
    rows = []
    for number, now in states.items():
        told = _told(now)
        values = {**({} if told is None else flat(told.record["config"])), **asked[number]}
        settings = {column: clean(values.get(key)) for column, key in columns.items()}
        rows.append(_row(now, points[number].key, settings, _forecast(sweep, number), told))
    return Results(tuple(columns), tuple(rows), overrides)


def _told(now: PointState) -> Told | None:
    """What the newest run folder of a point tells; None where there is none, or it is gone."""
    folder = now.fields.get("folder")
    return read_told(Path(folder)) if isinstance(folder, str) and Path(folder).is_dir() else None


def _row(
    now: PointState,
    key: str,
    settings: Mapping[str, Any],
    forecast: Mapping[str, Any],
    told: Told | None,
) -> dict[str, Any]:
    fields, figures = now.fields, forecast.get("figures") or {}
    state = state_of_point(now)
    ended = state in (FAILED, LOST)
    skipped = state == SKIPPED
    return {
        "point": now.number,
        "key": key,
        "state": state,
        "kind": fields.get("kind") if state == FAILED else None,
        "attempt": now.attempt,
        **settings,
        "verdict": figures.get("label"),
        **{name: figures.get(name) for name in GATE[1:]},
        **(dict.fromkeys(FIGURES) if told is None else run_figures(told)),
        "seconds": fields.get("seconds"),
        "folder": fields.get("folder"),
        "reason": (forecast.get("reason") or fields.get("what")) if skipped else None,
        "fix": forecast.get("fix"),
        "error": fields.get("what") if ended else None,
    }


def column_of(key: str) -> str:
    """What the column of a setting is called: its key, unless we use that name ourselves."""
    return f"setting.{key}" if key in OWN else key


def _forecast(sweep: Sweep, number: int) -> Mapping[str, Any]:
    return sweep.forecasts[number - 1] if number <= len(sweep.forecasts) else {}


def shown_columns(results: Results) -> Sequence[str]:
    """Return the columns that hold anything in any row."""
    names = list(results.rows[0]) if results.rows else []
    return [name for name in names if any(row[name] is not None for row in results.rows)]
