"""Writes for people what became of an imported file: settings, what is lost, what differs."""

from __future__ import annotations

from typing import Any

from llmsys_exp.importers.experiment import Experiment
from llmsys_exp.importers.imported import Imported
from llmsys_exp.importers.writers.exported import Exported
from llmsys_exp.report.console import Console, clean
from llmsys_exp.report.plan_text import show_verdict

MOST_VALUE = 44


def show_import(console: Console, experiment: Experiment, title: str) -> None:
    """Write all of it."""
    imported = experiment.imported
    console.line(f"{_plain(imported.source.name)}: {title}")
    console.title("Settings")
    pairs = [*imported.groups.items(), *imported.settings.items()]
    console.table([(key, shown(value)) for key, value in pairs])
    _show_lost(console, imported)
    if imported.notes:
        console.title("Means something else here, or stands in")
        for note in imported.notes:
            console.table([("-", _plain(note))])
    _show_plan(console, experiment)


def _show_lost(console: Console, imported: Imported) -> None:
    lost, harmless = imported.lost, [one for one in imported.unmapped if not one.matters]
    if lost:
        console.title("Could not be mapped")
        rows = [
            (_plain(one.key), shown(one.value), f"{_sentence(one.why)} {_sentence(one.do)}".strip())
            for one in lost
        ]
        console.table(rows, header=("key", "value", "why, and what to do"))
    if harmless:
        console.title("Left out, since it changes nothing that is learnt")
        advised = [one for one in harmless if one.do]
        console.table([(_plain(one.key), f"{_sentence(one.why)} {_sentence(one.do)}") for one in advised])
        console.table([(", ".join(_plain(one.key) for one in harmless if not one.do),)])


def _show_plan(console: Console, experiment: Experiment) -> None:
    plan, where = experiment.plan, experiment.config.hardware
    console.title(f"Plan on {where.gpus_per_node * where.nodes} x {where.gpu}")
    if plan is None:
        console.line(console.style("refused  ", "yellow") + experiment.refusal)
        return
    show_verdict(console, plan)


def shown(value: Any) -> str:
    """Write a value in few characters.

    >>> shown(True), shown([1, 2]), shown("x" * 60)[-4:]
    ('true', '[1, 2]', 'x...')
    """
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = _plain(str(value))
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}..."


def _plain(text: str) -> str:
    """Return one line without what would steer a terminal: the file may come from anywhere."""
    return " ".join(clean(text).split())


def _sentence(text: str) -> str:
    text = _plain(text)
    if not text:
        return ""
    capital = (
        text[0].upper() + text[1:]
        if not text.startswith(("training.", "data.", "method.", "llmsys"))
        else text
    )
    return capital if capital.endswith((".", "?", "!")) else f"{capital}."


def show_export(console: Console, exported: Exported) -> None:
    """Write what of a configuration is not in the files, and what means something else there."""
    lost, harmless = exported.lost, [one for one in exported.unmapped if not one.matters]
    for title, rows in (
        ("Not carried over, and changes what is learnt", lost),
        ("Not carried over", harmless),
    ):
        if rows:
            console.title(title)
            lines = [
                (one.key, shown(one.value), f"{_sentence(one.why)} {_sentence(one.do)}".strip())
                for one in rows
            ]
            console.table(lines)
    if exported.notes:
        console.title("Means something else there")
        for note in exported.notes:
            console.table([("-", note)])
