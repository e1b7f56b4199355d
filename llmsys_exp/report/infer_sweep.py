"""A sweep of inference runs at its end: table and words on the terminal, and with pictures in its folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmsys_exp.report.console import Console, duration
from llmsys_exp.report.infer_rows import FIGURES, Row, lines_of, swept
from llmsys_exp.report.infer_words import explain
from llmsys_exp.report.inference_summary import seconds_text
from llmsys_exp.report.plan_rows import short_names
from llmsys_exp.report.table_files import flat_csv_bytes, flat_parquet_bytes, write_whole
from llmsys_exp.runs.answers import NEEDS

NOTHING = "-"
COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("state", lambda row: row["state"]),
    ("time", lambda row: _text(row["seconds"], _seconds)),
    ("start", lambda row: _text(row["start_s"], lambda one: _seconds(one) if one else "warm")),
    ("in/s", lambda row: _text(row["input_tokens_per_s"], _count)),
    ("out/s", lambda row: _text(row["tokens_per_s"], _count)),
    ("p50", lambda row: _text(row["latency_p50_s"], seconds_text)),
    ("p99", lambda row: _text(row["latency_p99_s"], seconds_text)),
    ("cache", lambda row: _text(row["cache_hit_rate"], lambda one: f"{100 * one:.0f} %")),
    ("retracted", lambda row: _text(row["retractions"], _count)),
    ("KV planned", lambda row: _text(row["kv_planned"], _count)),
    ("KV engine", lambda row: _text(row["kv_engine"], _count)),
)
MAY_LEAVE = ("cache", "retracted", "KV planned", "KV engine")
"""Columns that are left out where no row has anything in them."""


def show_sweep(console: Console, rows: Sequence[Row]) -> None:
    """Write the table of the points and what each setting changed."""
    console.title("Points: tokens a second in and out, latency of an answer")
    names = short_names(list(swept(rows)))
    columns = [(name, lambda row, key=key: row["overrides"].get(key, NOTHING)) for key, name in names.items()]
    columns += [(name, text) for name, text in COLUMNS if name not in MAY_LEAVE or _said(rows, text)]
    cells = [[str(row["point"]), *(text(row) for _, text in columns)] for row in rows]
    header = ["", *(name for name, _ in columns)]
    words = len(names) + 1
    console.table(cells, header=header, right=[0, *range(words + 1, len(header))])
    for row in rows:
        if row["error"]:
            console.line(f"  point {row['point']} {row['state']}: {row['error']}")
    said = explain(rows)
    if said:
        console.title("What changed and why")
        for text in said:
            console.line(f"  {text}")


def write_sweep(folder: Path, rows: Sequence[Row], *, title: str) -> list[str]:
    """Write sweep.csv, sweep.parquet, what changed, and a picture for each setting; return notes.

    Raises:
        UserError: when the disk refuses.
    """
    write_csv(folder, rows)
    notes = []
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        notes.append(f"No sweep.parquet without {' and '.join(lacking)}")
    else:
        write_whole(folder / "sweep.parquet", flat_parquet_bytes(flat_rows(rows)))
    said = explain(rows)
    if said:
        write_whole(folder / "changes.txt", "".join(f"{text}\n" for text in said).encode())
    drawn = [key for key in swept(rows) if lines_of(rows, key)]
    if drawn and find_spec("matplotlib") is None:
        return [*notes, "No plots: matplotlib is not installed (pip install matplotlib)"]
    for key in drawn:
        _draw(folder / f"{short_names(list(swept(rows)))[key]}.png", rows, key, title)
    return notes


def write_csv(folder: Path, rows: Sequence[Row]) -> None:
    """Write sweep.csv alone, as it stands; raises UserError when the disk refuses."""
    write_whole(folder / "sweep.csv", flat_csv_bytes(flat_rows(rows)))


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as flat dictionaries, all with the same keys."""
    keys = dict.fromkeys(key for row in rows for key in row["overrides"])
    return [
        {
            "point": row["point"],
            **{key: row["overrides"].get(key) for key in keys},
            **{name: row[name] for name in ("state", *FIGURES, "folder", "error")},
        }
        for row in rows
    ]


def _draw(path: Path, rows: Sequence[Row], key: str, title: str) -> None:
    from llmsys_exp.report.infer_plots import sweep_figure

    picture = io.BytesIO()
    sweep_figure(rows, key, title).savefig(picture, format="png", dpi=150)
    write_whole(path, picture.getvalue())


def _said(rows: Sequence[Mapping[str, Any]], text: Callable[[Row], str]) -> bool:
    return any(text(row) not in (NOTHING, "0") for row in rows)


def _text(value: Any, write: Callable[[Any], str]) -> str:
    return NOTHING if value is None else write(value)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _seconds(value: float) -> str:
    return seconds_text(value) if value < 100 else duration(value)
