"""The files that a table of plans is written to: checked before the work, written after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.errors import UserError, closest
from llmsys_exp.report.plan_rows import Row, short_names

if TYPE_CHECKING:
    from llmsys_exp.cli.options import TableOptions
    from llmsys_exp.report.console import Console

MOST_BARS = 80
MOST_STEPS = 60


def check_output(tables: TableOptions, *, swept: Mapping[str, int] | None) -> None:
    """Refuse what could not be written or drawn once the work is done.

    Args:
        tables: the files asked for.
        swept: override -> how many values it takes; empty where not known, None without a sweep.

    Raises:
        UserError: saying what to change.
    """
    if tables.files:
        from llmsys_exp.report.table_files import check_files

        check_files(tables.files, force=tables.force)
    if tables.axes and tables.plot is None:
        raise UserError("--axes names what --plot draws", do="Add --plot FILE.png, or leave --axes out")
    if tables.axes and swept is None:
        raise UserError("--axes needs a sweep", do="Add -m and overrides with several values")
    if tables.plot and swept:
        _check_picture(tables, {key: count for key, count in swept.items() if count > 1})


def write_output(console: Console, tables: TableOptions, rows: Sequence[Row]) -> None:
    """Write every file asked for; tell of each, and of those that failed only after the others.

    Raises:
        UserError: naming the files that could not be written.
    """
    from llmsys_exp.report.table_files import write_whole

    problems: list[UserError] = []
    for flag, path in tables.files.items():
        try:
            content, note = _CONTENTS[flag](path, tables, rows)
            write_whole(path, content, force=tables.force)
            console.line(f"Wrote {path}{note}")
        except UserError as error:
            problems.append(error)
    if problems:
        lines = [f"{len(problems)} files were not written:", *map(str, problems)]
        raise problems[0] if len(problems) == 1 else UserError("\n  ".join(lines))


def full_axes(names: tuple[str, str], keys: Sequence[str]) -> tuple[str, str]:
    """Return two axes by their full keys, which may have been given by their short names."""
    full = {short: key for key, short in short_names(list(keys)).items()} | {key: key for key in keys}
    for name in names:
        if name not in full:
            near = closest(name, list(full))
            hint = f"Did you mean {near}?  " if near else ""
            varied = ", ".join(keys) or "nothing"
            raise UserError(f"{name} does not vary", where="--axes", do=f"{hint}What varies: {varied}")
    return full[names[0]], full[names[1]]


def _check_picture(tables: TableOptions, varied: Mapping[str, int]) -> None:
    if tables.axes:
        drawn = full_axes(tables.axes, list(varied))
    elif len(varied) == 2:
        drawn = tuple(varied)
    else:
        count = prod(varied.values())
        if count > MOST_BARS:
            what = f"--plot would draw {count} bars; up to {MOST_BARS} can be read"
            do = "Choose two overrides with --axes ACROSS,DOWN" if len(varied) > 2 else "Take fewer values"
            raise UserError(what, do=do)
        return
    for key in drawn:
        if varied[key] > MOST_STEPS:
            raise UserError(
                f"--plot would need {varied[key]} steps along {key}; up to {MOST_STEPS} can be read",
                do="Take fewer values",
            )


def _csv(path: Path, tables: TableOptions, rows: Sequence[Row]) -> tuple[bytes, str]:
    from llmsys_exp.report.table_files import csv_bytes

    return csv_bytes(rows), ""


def _parquet(path: Path, tables: TableOptions, rows: Sequence[Row]) -> tuple[bytes, str]:
    from llmsys_exp.report.table_files import parquet_bytes

    return parquet_bytes(rows), ""


def _plot(path: Path, tables: TableOptions, rows: Sequence[Row]) -> tuple[bytes, str]:
    from llmsys_exp.report.plan_plots import draw, picture_bytes

    figure, note = draw(rows, axes=tables.axes)
    return picture_bytes(figure, path.suffix), f" ({note})"


_CONTENTS: dict[str, Callable[[Path, TableOptions, Sequence[Row]], tuple[bytes, str]]] = {
    "--csv": _csv,
    "--parquet": _parquet,
    "--plot": _plot,
}
