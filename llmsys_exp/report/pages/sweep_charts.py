"""The charts of a sweep: one figure a chart for one or two settings, parallel coordinates for more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from llmsys_exp.report.pages.figures import Chart, axis, thinned, word
from llmsys_exp.report.pages.layout import shown
from llmsys_exp.report.plan_rows import short_names
from llmsys_exp.sweeps.results.best import MEASURES, Measure, is_number
from llmsys_exp.sweeps.results.rows import Results, Row

MOST_LINES = 2_000
MOST_AXES = 9
MOST_FIGURES = 3
MOST_WORDS = 40
"""Values of a setting that a map or an axis still shows."""
FORECASTS = {
    "peak": ("peak_planned_gib", "peak_measured_gib", "Memory of a rank, GiB"),
    "host": ("host_planned_gib", "host_measured_gib", "Main memory of a node, GiB"),
    "kv": ("kv_planned", "kv_engine", "KV pool, tokens"),
    "speed": ("planned_tokens_per_s", "tokens_per_s", "Training tokens/s"),
}
"""Name -> columns of forecast and measurement, and what they are."""


def setting_charts(
    results: Results, measures: Sequence[Measure], *, sampled: Mapping[str, bool] = MappingProxyType({})
) -> dict[str, Chart]:
    """Return the charts of figures over settings, by name; none where nothing varies or nothing is known.

    Args:
        results: of the sweep.
        measures: the figures, those that matter most first.
        sampled: settings that a search takes from a range, and whether by their logarithm.
    """
    settings = [key for key in results.settings if _has_few(results.rows, key)]
    first = measures[:MOST_FIGURES]
    charts: dict[str, Chart] = {}
    if len(settings) == 1:
        charts = {f"dots-{one.column}": _dots(results, settings[0], one, sampled) for one in first}
    elif len(settings) == 2 and _fills_grid(results.rows, settings):
        charts = {f"heat-{one.column}": _heat(results, settings, one) for one in first}
    elif len(settings) == 2 and first:
        charts = {f"dots-{key}": _dots(results, key, first[0], sampled) for key in settings}
    if len(settings) > 1:
        charts["parallel"] = _parallel(results, settings, first, sampled)
    return charts


def forecast_charts(results: Results) -> dict[str, Chart]:
    """Return the charts of measured figures over planned ones, by name."""
    charts = {}
    for name, (planned, measured, title) in FORECASTS.items():
        rows = [row for row in results.rows if is_number(row[planned]) and is_number(row[measured])]
        rows = [row for row in rows if row[planned] > 0 and row[measured] > 0]
        if not rows:
            continue
        shape, _ = axis("planned", [row[key] for row in rows for key in (planned, measured)])
        charts[f"forecast-{name}"] = {
            "kind": "scatter",
            "caption": title,
            "note": _off_text([row[measured] / row[planned] - 1 for row in rows]),
            "x": shape,
            "y": {**shape, "title": "measured"},
            "same": "as planned",
            "points": [
                {"n": row["point"], "at": [row[planned], row[measured]]} for row in thinned(rows, MOST_LINES)
            ],
        }
    return charts


def said(row: Row, settings: Sequence[str]) -> str:
    """Say what a point is, for the pointer: state, settings, figures."""
    kind = f" ({row['kind']})" if row["kind"] else ""
    given = [f"{key} = {shown(row[key])}" for key in settings if row[key] is not None]
    figures = [f"{one.name}: {shown(row[one.column])}" for one in MEASURES if row[one.column] is not None]
    return "\n".join([f"point {row['point']}: {row['state']}{kind}", *given, *figures])


def _dots(results: Results, key: str, one: Measure, sampled: Mapping[str, bool]) -> Chart:
    rows = [row for row in results.rows if row[key] is not None and is_number(row[one.column])]
    x, across = _axis(key, key, rows, sampled)
    y, up = axis(one.name, [row[one.column] for row in rows])
    points = [
        {"n": row["point"], "at": [at, height]} for row, at, height in zip(rows, across, up, strict=True)
    ]
    return {
        "kind": "scatter",
        "caption": one.name,
        "note": "",
        "x": x,
        "y": y,
        "points": thinned(points, MOST_LINES),
    }


def _axis(title: str, key: str, rows: Sequence[Row], sampled: Mapping[str, bool]) -> tuple[Chart, list[Any]]:
    """Return the axis of a setting; the values of a range are as good as any, and are not marked."""
    return axis(title, [row[key] for row in rows], marks=key not in sampled, log=sampled.get(key, False))


def _heat(results: Results, settings: Sequence[str], one: Measure) -> Chart:
    columns = [_words([row[key] for row in results.rows]) for key in settings]
    cells: dict[tuple[int, int], list[Row]] = {}
    for row in results.rows:
        place = tuple(columns[at].index(_word(row[key])) for at, key in enumerate(settings))
        cells.setdefault((place[0], place[1]), []).append(row)
    return {
        "kind": "heat",
        "caption": one.name,
        "note": "",
        "title": one.name,
        "x": {"title": settings[0], "words": columns[0]},
        "y": {"title": settings[1], "words": columns[1]},
        "cells": [_cell(place, rows, one.column) for place, rows in cells.items()],
    }


def _cell(place: tuple[int, int], rows: Sequence[Row], name: str) -> dict[str, Any]:
    known = [row[name] for row in rows if is_number(row[name])]
    others = "" if len(rows) == 1 else f"and {len(rows) - 1} more points here; the cell shows their mean"
    return {
        "x": place[0],
        "y": place[1],
        "value": fmean(known) if known else None,
        "state": rows[0]["state"],
        "n": rows[0]["point"] if len(rows) == 1 else None,
        "first": rows[0]["point"],
        "others": others,
    }


def _parallel(
    results: Results, settings: Sequence[str], measures: Sequence[Measure], sampled: Mapping[str, bool]
) -> Chart:
    """One axis a setting, those with most values where there are too many, and one a figure."""
    few = sorted(settings, key=lambda key: -len({word(row[key]) for row in results.rows}))
    kept = [key for key in settings if key in few[: MOST_AXES - len(measures)]]
    rows = thinned(results.rows, MOST_LINES)
    names = short_names(kept)
    made = [_axis(names[key], key, rows, sampled) for key in kept]
    made += [axis(one.name, [row[one.column] for row in rows]) for one in measures]
    places = [at for _, at in made]
    colour = measures[0] if measures else None
    return {
        "kind": "parallel",
        "caption": "Settings and results",
        "note": _note(len(results.rows), len(rows), len(settings), len(kept)),
        "title": "" if colour is None else colour.name,
        "axes": [shape for shape, _ in made],
        "lines": [
            {
                "n": row["point"],
                "at": [column[index] for column in places],
                "value": None if colour is None or not is_number(row[colour.column]) else row[colour.column],
            }
            for index, row in enumerate(rows)
        ],
    }


def _note(all_rows: int, rows: int, settings: int, kept: int) -> str:
    less = [f"{rows:,} of {all_rows:,} points"] if rows < all_rows else []
    less += [f"{kept} of {settings} settings, those with most values"] if kept < settings else []
    return f"Shown: {', '.join(less)}." if less else ""


def _fills_grid(rows: Sequence[Row], settings: Sequence[str]) -> bool:
    """Whether most combinations of two settings are there; a search tries values of its own."""
    across, down = (len({word(row[key]) for row in rows}) for key in settings)
    places = {tuple(word(row[key]) for key in settings) for row in rows}
    return max(across, down) <= MOST_WORDS and len(places) > across * down / 2


def _has_few(rows: Sequence[Row], key: str) -> bool:
    """Whether a setting can be drawn: numbers, or words of which there are not too many."""
    values = {row[key] for row in rows if row[key] is not None}
    return all(map(is_number, values)) or len(values) <= MOST_WORDS


def _words(values: Sequence[Any]) -> list[str]:
    numbers = sorted({value for value in values if is_number(value)})
    words = sorted({_word(value) for value in values if not is_number(value)})
    return [*map(_word, numbers), *words]


def _word(value: Any) -> str:
    return "not set" if value is None else shown(value) if is_number(value) else word(value)


def _off_text(off: Sequence[float]) -> str:
    return (
        f"{len(off):,} points; median error {100 * median(map(abs, off)):.1f} %, "
        f"measured from {100 * min(off):+.1f} % to {100 * max(off):+.1f} % of the plan."
    )
