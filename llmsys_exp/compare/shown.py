"""A comparison as text: which runs, what was different, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from llmsys_exp.compare.comparison import Comparison
from llmsys_exp.compare.curves import curve_rows
from llmsys_exp.compare.evidence import VERSION, EvidenceRow
from llmsys_exp.compare.settings import CHOSEN, UNKNOWN, SettingRow
from llmsys_exp.compare.subjects import Subject
from llmsys_exp.report.console import Console, clean
from llmsys_exp.report.pages.layout import shown
from llmsys_exp.reproduce.drift import Effect, short

CELL = 26
"""Signs of a value that are shown."""
TEXT = 220
MOST_ROWS = 30
MOST_FILES = 8
FEW = 3
"""Up to so many runs, where values come from and why fits on the screen; of more, --json tells."""
_HASH_SIGNS = 12
_SAID = ("code",)
"""Kinds of evidence that are told in words: a list of changed files is no value."""


def show_comparison(console: Console, found: Comparison) -> None:
    """Write a comparison."""
    rows = [
        (one.letter, one.name, one.state, clean(",".join(sorted(one.steps))) or "-", _started(one))
        for one in found.subjects
    ]
    console.table(rows, header=("", "run", "state", "steps", "started"))
    _show_settings(console, found)
    _show_evidence(console, found)
    _show_figures(console, found)
    _show_curves(console, found)
    _show_answers(console, found)
    for note in found.notes:
        console.line(console.style(f"  note: {clean(note)}", "yellow"))


def _started(subject: Subject) -> str:
    return clean(str(subject.told.record["started"] or "-"))


def _show_settings(console: Console, found: Comparison) -> None:
    matters = [row for row in found.settings if row.effect is not Effect.NOTHING]
    harmless = [row.key for row in found.settings if row.effect is Effect.NOTHING]
    console.title("Settings that differ" if matters else "No setting that matters differs")
    rows = [
        (row.key, [_setting(found, row, place) for place in _places(found)], row.effect.words)
        for row in matters
    ]
    _table(console, found, rows, last="may change")
    for row in matters if len(found.subjects) <= FEW else ():
        for place in _places(found):
            if row.origins[place] == CHOSEN and row.reasons[place]:
                who = found.subjects[place].letter
                console.line(
                    console.style(f"    {clean(row.key)} in {who}: {clean(row.reasons[place])}", "dim")
                )
    if harmless:
        console.line(console.style(f"  Of no effect on the run: {', '.join(harmless)}", "dim"))


def _setting(found: Comparison, row: SettingRow, place: int) -> str:
    value, origin = _cut(row.values[place]), row.origins[place]
    return value if origin == UNKNOWN or len(found.subjects) > FEW else f"{value} ({origin})"


def _show_evidence(console: Console, found: Comparison) -> None:
    if not found.evidence:
        console.title("Code, packages, machine, data and model: no difference on record")
        return
    console.title("Code, packages, machine, data and model that differ")
    shown_rows = [row for row in found.evidence if row.kind not in _SAID or row.key == VERSION]
    harmless = [row for row in shown_rows if row.effect is Effect.NOTHING]
    listed = [row for row in shown_rows if row.effect is not Effect.NOTHING]
    rows = [
        (f"{row.kind}: {row.key}", [_evidence(row, place) for place in _places(found)], row.effect.words)
        for row in listed[:MOST_ROWS]
    ]
    _table(console, found, rows, last="may change")
    _show_code(console, found)
    if len(listed) > MOST_ROWS:
        console.line(console.style(f"  {len(listed) - MOST_ROWS} more: --json", "dim"))
    if harmless:
        names = ", ".join(f"{row.kind}: {_key(row)}" for row in harmless)
        console.line(console.style(f"  Of no effect on numbers: {names}", "dim"))


def _show_code(console: Console, found: Comparison) -> None:
    """List changed files by run, most serious first; files that change nothing are left to --json."""
    most = MOST_FILES if len(found.subjects) <= FEW else 2
    for one in found.subjects:
        files = [row for row in found.evidence if row.kind in _SAID and row.key != VERSION]
        files = [row for row in files if one.letter in row.said and row.effect is not Effect.NOTHING]
        for row in files[:most]:
            console.line(f"    {one.letter}: {clean(row.said[one.letter])}: {row.effect.words}")
        if len(files) > most:
            console.line(f"    {one.letter}: {len(files) - most} more files: --json")


def _key(row: EvidenceRow) -> str:
    counts = [len(value) for value in row.values if isinstance(value, list)]
    return f"{max(counts)} others" if row.key == "others" and counts else row.key


def _evidence(row: EvidenceRow, place: int) -> str:
    value: Any = row.values[place]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    text = "-" if value is None else str(value)
    is_hash = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text[:_HASH_SIGNS] if is_hash else _cut(text)


def _show_figures(console: Console, found: Comparison) -> None:
    for title, group in groupby(found.figures, key=lambda row: row.title):
        console.title(title)
        rows = []
        for row in group:
            marks = [
                f"{'-' if value is None else shown(value)}{' *' if place == row.best else ''}"
                for place, value in enumerate(row.values)
            ]
            rows.append((row.name, marks, row.difference if len(found.subjects) == 2 else ""))
        _table(console, found, rows, last="B beside A" if len(found.subjects) == 2 else "", right=True)
    if any(row.best is not None for row in found.figures):
        console.line(console.style("  * best", "dim"))


def _show_curves(console: Console, found: Comparison) -> None:
    rows = curve_rows(found.curves)
    if rows:
        console.title("Training loss over the steps, on the same axes")
        console.table(rows)


def _show_answers(console: Console, found: Comparison) -> None:
    if not found.pairs:
        return
    console.title("Answers")
    for pair in found.pairs:
        said = f"{pair.equal:,} of {pair.shared:,} prompts answered alike"
        only = "".join(
            f"; {count:,} only in {letter}"
            for count, letter in zip(pair.only, (pair.against, pair.letter), strict=True)
            if count
        )
        console.line(f"  {pair.against} and {pair.letter}: {said}{only}")
    for one in found.differing:
        console.line(f"  prompt {one.index}: {_one_line(one.prompt)}")
        letters: dict[str, list[str]] = {}
        for letter, text in one.answers.items():
            letters.setdefault(text, []).append(letter)
        console.table([("", ",".join(alike), _one_line(text)) for text, alike in letters.items()])


def _table(
    console: Console,
    found: Comparison,
    rows: Sequence[tuple[str, Sequence[str], str]],
    *,
    last: str,
    right: bool = False,
) -> None:
    """Write a table with a column for each run; of more than fit, the first run stands in each part again."""
    if not rows:
        return
    letters = [one.letter for one in found.subjects]
    for places in _parts(console, letters, rows):
        header = ("", *(letters[place] for place in places), *([last] if last else []))
        lines = [
            (clean(name), *(cells[place] for place in places), *([end] if last else []))
            for name, cells, end in rows
        ]
        columns = range(1, len(places) + 1) if right else ()
        console.table(lines, header=header, right=columns)


def _parts(
    console: Console, letters: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]]
) -> Iterator[list[int]]:
    widths = [max(len(row[1][place]) for row in rows) + 2 for place in range(len(letters))]
    room = console.width - max(len(row[0]) for row in rows) - max(len(row[2]) for row in rows) - 6
    part = [0]
    for place in range(1, len(letters)):
        if len(part) > 1 and sum(widths[one] for one in [*part, place]) > room:
            yield part
            part = [0]
        part.append(place)
    yield part


def _places(found: Comparison) -> range:
    return range(len(found.subjects))


def _cut(text: str) -> str:
    return clean(short(text, CELL)).replace("\n", " ")


def _one_line(text: str) -> str:
    return clean(short(" ".join(text.split()) or "(empty)", TEXT))
