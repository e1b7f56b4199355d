"""The commands of `llmsys sweep` that tell what came out: table and report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from llmsys_exp.cli.options import Options, take_values, unknown_argument
from llmsys_exp.cli.sweep_follow import newest_sweep
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console
from llmsys_exp.report.pages.layout import check_package, is_page, shown, write_page
from llmsys_exp.report.plan_rows import short_names
from llmsys_exp.report.table_files import check_files, write_whole
from llmsys_exp.sweeps.folder import Sweep, SweepPaths, open_sweep
from llmsys_exp.sweeps.results.best import is_number
from llmsys_exp.sweeps.results.rows import Results, read_results_of

PAGE = "report.html"
OUTPUT = {"-o": "FILE", "--output": "FILE"}
_SHOWN = {
    "kind": "kind",
    "verdict": "verdict",
    "needed_gib": "forecast GiB",
    "peak_measured_gib": "peak GiB",
    "heldout_loss": "held-out loss",
    "score": "score",
    "loss_last": "loss",
    "tokens_per_s": "tokens/s",
    "out_tokens_per_s": "out/s",
    "latency_p99_s": "p99 s",
    "seconds": "seconds",
}
"""Columns that a terminal has room for; --csv and --json have all."""


def report(rest: list[str], options: Options) -> int:
    """Write the page of a sweep, and its table anew."""
    values, rest = take_values(rest, OUTPUT)
    _refuse_flags(rest, ["-o"], "report")
    asked = values.get("-o", values.get("--output"))
    check_package()
    paths, sweep = open_sweep(newest_sweep(rest, "report"))
    page = paths.folder / PAGE if asked is None else Path(asked)
    check_page(page)
    from llmsys_exp.report.pages.sweep_page import sweep_page
    from llmsys_exp.sweeps.results.table import write_results

    results, notes = write_results(paths, sweep)
    write_page(page, sweep_page(paths, sweep, results))
    tell_page(page, results, notes, options)
    return EXIT_OK


def tell_page(page: Path, results: Results, notes: Sequence[str], options: Options) -> None:
    """Say where the page of a sweep is."""
    if options.json:
        told = {"page": str(page.absolute()), "points": len(results.rows), "notes": list(notes)}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    console = Console.on(sys.stdout)
    console.line(f"{len(results.rows)} points: {os.path.relpath(page)}")
    for note in notes:
        console.line(console.style(f"note: {note}", "yellow"))


def table(rest: list[str], options: Options) -> int:
    """Show the table of a sweep, or write it to a file."""
    values, rest = take_values(rest, {"--csv": "FILE", "--parquet": "FILE"})
    force, rest = "--force" in rest, [text for text in rest if text != "--force"]
    _refuse_flags(rest, ["--csv", "--parquet", "--force"], "table")
    files = {flag: Path(name) for flag, name in values.items()}
    check_files(files, force=force)
    paths, sweep = open_sweep(newest_sweep(rest, "table"))
    from llmsys_exp.sweeps.results.table import csv_bytes, parquet_bytes

    results = read_results_of(paths, sweep)
    if not results.rows:
        raise UserError("The sweep has no points yet", where=str(paths.folder))
    for flag, path in files.items():
        write_whole(path, csv_bytes(results) if flag == "--csv" else parquet_bytes(results))
    if options.json:
        sys.stdout.write(json.dumps([dict(row) for row in results.rows], indent=2, default=str) + "\n")
    elif not files:
        show_table(Console.on(sys.stdout), results)
    return EXIT_OK


def show_table(console: Console, results: Results) -> None:
    """Write the columns that tell points apart and fit a terminal."""
    rows = results.rows
    names = {name: title for name, title in _SHOWN.items() if any(row[name] is not None for row in rows)}
    titles = {"point": "point", "state": "state", **short_names(results.settings), **names}
    cells = [[shown(row[name]) or "-" for name in titles] for row in rows]
    numeric = [all(is_number(row[name]) for row in rows if row[name] is not None) for name in titles]
    right = [place for place, one in enumerate(numeric) if one]
    console.table(cells, header=list(titles.values()), right=right)


def refresh(paths: SweepPaths, sweep: Sweep, console: Console) -> None:
    """Write the table at the end of a run; where the disk refuses, say so and leave it at that."""
    from llmsys_exp.sweeps.results.table import CSV, write_results

    try:
        results, notes = write_results(paths, sweep)
    except UserError as error:
        notes, results = [f"No table: {error}"], None
    if results is not None and results.rows:
        console.line(f"Table: {paths.folder / CSV}   Page: llmsys sweep report {quote(str(paths.folder))}")
    for note in notes:
        console.line(console.style(f"note: {note}", "yellow"))


def check_page(page: Path) -> None:
    """Refuse a page that could not be written, or that would replace a file that is no page of ours.

    Raises:
        UserError: saying which.
    """
    if page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"-o writes a page, and {page} is no .html", do="Name a file that ends with .html")
    if not page.parent.is_dir():
        raise UserError("There is no such folder", where=str(page), do=f"mkdir -p {page.parent}")
    if page.is_dir():
        raise UserError("This is a folder", where=str(page), do="Name a file")
    if page.exists() and not is_page(page):
        raise UserError("This file exists, and llmsys did not write it", where=str(page), do="Name another")


def _refuse_flags(rest: Sequence[str], valid: Sequence[str], command: str) -> None:
    flags = [text for text in rest if text.startswith("-")]
    if flags:
        raise unknown_argument(flags[0], [*valid, "--json"], where=f"llmsys sweep {command}")
