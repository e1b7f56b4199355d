"""`llmsys runs show`: what one run is, how far it came, and what came out."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.browse.named import named_folder
from llmsys_exp.browse.sizes import size_of
from llmsys_exp.cli.options import Options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_OK, UserError
from llmsys_exp.report.console import Console, clean
from llmsys_exp.report.pages.run_facts import figure_cards, size_text
from llmsys_exp.report.pages.run_settings import DEFAULT, settings_rows
from llmsys_exp.runs.listing import FoundRun
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.told import Told, part, read_told


def run(rest: Sequence[str], options: Options) -> int:
    """Show one run."""
    values, rest = take_values(rest, {"--outputs": "FOLDER"})
    unknown = [text for text in rest if text.startswith("-")]
    if unknown:
        raise unknown_argument(unknown[0], ["--outputs", "--json"], where="llmsys runs show")
    if len(rest) != 1:
        raise UserError("show takes one run", do="llmsys runs lists them; llmsys runs show latest")
    folder = named_folder(rest[0], Path(values.get("--outputs", "outputs")))
    found, told = FoundRun(RunPaths(folder)), read_told(folder)
    if options.json:
        content = {**found.row.to_dict(), "bytes": size_of(folder), "record": told.record}
        sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")
        return EXIT_OK
    _show(Console.on(sys.stdout), found, told)
    return EXIT_OK


def _show(console: Console, found: FoundRun, told: Told) -> None:
    record, problems = told.record, list[str]()
    command = record["command"]
    facts = [
        ("run", found.id),
        ("state", found.state),
        ("steps", ", ".join(found.row.steps)),
        ("started", str(record["started"] or f"{found.time:%Y-%m-%d %H:%M:%S}")),
        ("repeats", str(record["reproduces"])),
        ("command", shlex.join(map(str, command)) if isinstance(command, list) else ""),
        ("folder", f"{os.path.relpath(found.paths.folder)}, {size_text(size_of(found.paths.folder))}"),
    ]
    console.table(_cleaned(fact for fact in facts if fact[1]))
    for card in figure_cards(told, problems):
        console.title(clean(card["title"]))
        figures = [(value, name, f"before: {was}" if was else "") for name, value, was in card["figures"]]
        rows = [(name, value, more) for value, name, more in figures]
        console.table(_cleaned([*rows, *((name, text) for name, text in card["facts"] if text)]))
    rows = part(lambda: settings_rows(record), [], problems)
    console.title("Settings that are not at their defaults")
    console.table(
        _cleaned((row["key"], row["value"], row["why"]) for row in rows if row["from"] != DEFAULT),
        header=("setting", "value", "why"),
    )
    notes = record["notes"]
    if found.paths.manifest.exists() and not told.complete:
        problems.insert(
            0, "manifest.json cannot be read, so this is what start.json and the other files tell"
        )
    for note in [*(notes if isinstance(notes, list) else ()), *problems]:
        console.line(console.style(f"  note: {clean(str(note))}", "yellow"))


def _cleaned(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    """Return cells without what would steer a terminal: a record may come from anywhere."""
    return [[clean(str(cell)) for cell in row] for row in rows]
